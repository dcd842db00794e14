package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// Handler runs one job. When ctx is done, it returns: context.Cause(ctx) says why.
type Handler func(ctx context.Context, job *Job) (result any, err error)

// Job is a claimed job. A null of the database is a zero value here.
type Job struct {
	ID, Run     int64
	Task        string `json:"task_identifier"`
	Payload     json.RawMessage
	Attempts    int
	MaxAttempts int    `json:"max_attempts"`
	Queue       string `json:"queue_name"`
	Key         string
	Sequence    string `json:"sequence_key"`
	Flags, Meta json.RawMessage
	Delivery    string
	Crashes     int
	TimeoutS    float64 `json:"timeout_s"`
	RunAtS      float64 `json:"run_at_s"`
	CreatedAtS  float64 `json:"created_at_s"`

	w          *worker
	ctx        context.Context
	stop, tell context.CancelCauseFunc // its handler must stop, or may
	finished   atomic.Bool             // its own transaction completes it
	until      time.Time               // when it must have begun
	report     string                  // JSON: how its run has ended
	aside      time.Time               // until then the report waits: another session has locked the job
}

// Report is an end other than completion. A handler returns it as its error.
type Report struct {
	Do      string          `json:"do"` // fail, discard, cancel, not_started, snooze
	Text    string          `json:"error,omitempty"`
	DelayS  any             `json:"delay_s,omitempty"` // a number
	Payload json.RawMessage `json:"payload,omitempty"`
	Result  any             `json:"result,omitempty"` // of the report done, which a handler does not give
	Begun   *bool           `json:"begun,omitempty"`  // of the report release: was its handler called?
}

func (r *Report) Error() string { return r.Do + " " + r.Text }

var (
	errReleased error = &Report{Do: "release"}
	errUnbegun  error = &Report{Do: "release", Begun: new(bool)}
	// Without an answer, or with a late one, the job may be started. But its handler has done nothing.
	errUnanswered error = &Report{Do: "not_started", Text: "start_job was not answered in time"}
)

// Once is true once for each name, over all runs of the job.
func (j *Job) Once(name string) (bool, error) {
	return ask[bool](j.ctx, j.w, j.w.pool, "SELECT pyworker.once($1, $2, $3)", j.ID, j.Run, name)
}

// Transaction completes the job in the transaction of do: both commit, or neither. If its COMMIT is not
// answered, this is an error. Then the report waits until the database knows: if it has committed, the report
// is stale.
func (j *Job) Transaction(do func(pgx.Tx) error) error {
	err := pgx.BeginFunc(j.ctx, j.w.pool, func(tx pgx.Tx) error {
		if err := do(tx); err != nil {
			return err
		}
		_, err := ask[any](j.ctx, j.w, tx, "SELECT pyworker.finish_job($1, $2)", j.ID, j.Run)
		j.finished.Store(err == nil)
		return err
	})
	if err != nil {
		j.finished.Store(false)
	}
	return err
}

// call calls the handler.
func (j *Job) call() (result any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	if since(j.until) > 0 { // the process was paused
		return nil, errUnbegun
	}
	if j.Delivery == "at_most_once" || slices.Contains(j.w.once, j.Task) {
		sql := "SELECT pyworker.start_job($1, $2, 'at_most_once')"
		start, err := ask[bool](j.ctx, j.w, j.w.pool, sql, j.ID, j.Run)
		j.w.locked(func() {}) // the answer may be late: this process was paused, and others have the job
		if err != nil || start && j.ctx.Err() != nil {
			return nil, errUnanswered
		} else if !start {
			return nil, errUnbegun
		}
	}
	if j.TimeoutS > 0 {
		late := func() { j.stop(fmt.Errorf("timed out after %v s", j.TimeoutS)) }
		defer time.AfterFunc(seconds(j.TimeoutS), late).Stop()
	}
	return j.w.handlers[j.Task](j.ctx, j)
}

// end notes what to report: without an error the job is completed. Only the first end counts. The caller
// holds the lock.
func (j *Job) end(result any, err error) {
	if j.report != "" {
		return
	}
	if err != nil && err != errUnanswered && j.ctx != nil && j.ctx.Err() != nil {
		err = context.Cause(j.ctx)
	}
	report := &Report{Do: "done", Result: result}
	if err != nil && !errors.As(err, &report) {
		report = &Report{Do: "fail", Text: fmt.Sprintf("%T: %.32000v", err, err)}
	}
	text, err := json.Marshal(report)
	if err != nil {
		j.end(nil, errors.New(err.Error()))
		return
	}
	j.report = strings.ToValidUTF8(string(text), "\ufffd")
}
