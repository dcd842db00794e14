package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"regexp"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

var (
	errLost           = errors.New("the claim is lost")
	errReleased error = &Report{Do: "release"}
)

// Handler runs one job. When ctx is done, it returns: context.Cause(ctx) says why.
type Handler func(ctx context.Context, job *Job) (result any, err error)

type claim struct {
	ID  int64 `json:"id"`
	Run int64 `json:"run"`
}

// Job is a claimed job. A null of the database is a zero value here.
type Job struct {
	claim
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

	w        *worker
	ctx      context.Context
	cancel   context.CancelCauseFunc
	finished atomic.Bool // its own transaction completes it
	begun    bool        // its handler runs, or has run
	over     bool        // its handler has returned
	gone     bool        // there is nothing to report
	ended    bool        // to be reported: completed with this result, or as the report says
	result   *string
	report   string
}

// Report is an end other than completion. A handler returns it as its error.
type Report struct {
	claim
	Do      string          `json:"do"` // fail, discard, cancel, not_started, snooze
	Text    string          `json:"error,omitempty"`
	DelayS  any             `json:"delay_s,omitempty"` // a number
	Payload json.RawMessage `json:"payload,omitempty"`
}

func (r *Report) Error() string { return r.Do + " " + r.Text }

// Once is true once for each name, over all runs of the job.
func (j *Job) Once(name string) (bool, error) {
	return ask[bool](j.ctx, j.w, j.w.pool, "SELECT pyworker.once($1, $2, $3)", j.ID, j.Run, name)
}

// Transaction completes the job in the transaction of do: both commit, or neither.
func (j *Job) Transaction(do func(pgx.Tx) error) error {
	tx, err := j.w.pool.Begin(j.ctx)
	if err != nil {
		return err
	}
	always := context.WithoutCancel(j.ctx)
	defer tx.Rollback(always)
	if err := do(tx); err != nil {
		return err
	}
	finish := "SELECT pg_current_xact_id()::text FROM pyworker.finish_job($1, $2)"
	xid, err := ask[string](j.ctx, j.w, tx, finish, j.ID, j.Run)
	if err != nil {
		return err
	}
	j.finished.Store(true)
	err = tx.Commit(always)
	for committed := (*bool)(nil); err != nil; time.Sleep(100 * time.Millisecond) {
		was := "SELECT pyworker.was_finished($1, $2, $3::text::xid8)"
		committed, _ = ask[*bool](always, j.w, j.w.pool, was, j.ID, j.Run, xid)
		if committed != nil && *committed {
			return nil
		} else if committed != nil {
			j.finished.Store(false)
			return err
		}
	}
	return nil
}

// run calls the handler, and notes what to report.
func (j *Job) run() {
	result, err := j.call()
	if err != nil && j.ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(j.ctx), err)
	}
	j.w.mu.Lock()
	defer j.w.mu.Unlock()
	j.w.running, j.w.alone, j.over = j.w.running-1, false, true
	if j.gone = j.gone || j.finished.Load(); !j.ended {
		j.end(result, err)
	}
	j.w.begin()
}

func (j *Job) call() (result any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	if j.Delivery == "at_most_once" {
		start, err := ask[bool](j.ctx, j.w, j.w.pool, "SELECT pyworker.start_job($1, $2)", j.ID, j.Run)
		// The answer may be late: this process was paused, and others have the job. To be dead ends ctx.
		if err != nil || !start || j.w.isSilent() || j.ctx.Err() != nil {
			return nil, errReleased
		}
	}
	if j.TimeoutS > 0 {
		late := func() { j.stop(fmt.Errorf("timed out after %v s", j.TimeoutS)) }
		defer time.AfterFunc(seconds(j.TimeoutS), late).Stop()
	}
	return j.w.handlers[j.Task](j.ctx, j)
}

// told does what a row of kind stop says. The caller holds the lock, as of all below.
func (j *Job) told(why string) {
	switch {
	case j.ended || j.finished.Load():
	case why == "lost":
		j.lose()
	case j.begun:
		j.cancel(errors.New("the job was cancelled"))
	default:
		j.end(nil, errReleased)
	}
}

// lose forgets a job that others may have.
func (j *Job) lose() {
	if j.gone = true; j.begun {
		j.stop(errLost)
	}
}

// stop tells the handler to end. If it does not, only the end of the process stops it.
func (j *Job) stop(why error) {
	j.cancel(why)
	time.AfterFunc(grace, func() {
		j.w.mu.Lock()
		defer j.w.mu.Unlock()
		if j.over {
			return
		}
		log.Printf("job %d, %s, does not stop: %v", j.ID, j.Task, why)
		if j.gone {
			os.Exit(exitDeaf) // before others run it
		}
		j.end(nil, why)
		j.w.stop(0, exitDeaf)
	})
}

// end notes what to report: without an error the job is completed.
func (j *Job) end(result any, err error) {
	if j.ended = true; err == nil && result != nil {
		var text string
		text, err = encode(result)
		j.result = &text
	}
	if err == nil {
		return
	}
	sent := Report{Do: "fail", Text: fmt.Sprintf("%T: %.32000v", err, err)}
	if given := (*Report)(nil); errors.As(err, &given) {
		sent = *given // the handler may give the same one to many jobs
	}
	sent.claim = j.claim
	if j.report, err = encode(sent); err != nil {
		j.end(nil, err)
	}
}

// In JSON: a whole pair of surrogates, half a pair, U+0000, any other escape.
var escape = regexp.MustCompile(`(?i)\\ud[89ab]..\\ud[c-f]..|\\ud[89a-f]..|\\u0000|\\.`)

// encode makes JSON without what jsonb refuses.
func encode(value any) (string, error) {
	text, err := json.Marshal(value)
	return escape.ReplaceAllStringFunc(string(text), func(found string) string {
		if len(found) == len(`\u0000`) {
			return `\ufffd`
		}
		return found
	}), err
}
