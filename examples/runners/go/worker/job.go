package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"runtime/debug"
	"time"

	"github.com/jackc/pgx/v5"
)

// The states of a job in this process. One that is gone has a handler that runs, and nothing to report.
const (
	waiting = iota
	running
	committing
	gone
	ended
	done
)

var (
	errLost      = errors.New("the claim is lost")
	errCancelled = errors.New("the job was cancelled")
	errStopped   = errors.New("the worker stops")
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

	w         *Worker
	state     int
	must, ctx context.Context // must ends when the handler has to obey; ctx ends with it, and by cancel_job
	stop, ask context.CancelCauseFunc
	result    *string
	report    string // JSON, of a job that ended; "": it is completed
}

// Report is an end other than completion. A handler returns it as its error.
type Report struct {
	ID      int64           `json:"id"`
	Run     int64           `json:"run"`
	Do      string          `json:"do"` // fail, discard, cancel, not_started, snooze, release
	Text    string          `json:"error,omitempty"`
	DelayS  any             `json:"delay_s,omitempty"` // a number
	Payload json.RawMessage `json:"payload,omitempty"`
}

func (r *Report) Error() string { return r.Do + " " + r.Text }

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
	var xid string
	finish := "SELECT pg_current_xact_id()::text FROM pyworker.finish_job($1, $2)"
	if err := tx.QueryRow(j.ctx, finish, j.ID, j.Run).Scan(&xid); err != nil {
		return j.noted(err)
	}
	j.become(running, committing)
	err = tx.Commit(always)
	for done := (*bool)(nil); err != nil; time.Sleep(100 * time.Millisecond) {
		was := "SELECT pyworker.was_finished($1, $2, $3::text::xid8)"
		if j.w.pool.QueryRow(always, was, j.ID, j.Run, xid).Scan(&done) != nil || done == nil {
			continue // not known yet
		}
		if !*done {
			j.become(committing, running)
			return err
		}
		break
	}
	j.become(committing, gone)
	return nil
}

// Once is true once for each name, over all runs of the job.
func (j *Job) Once(name string) (first bool, err error) {
	err = j.w.pool.QueryRow(j.ctx, "SELECT pyworker.once($1, $2, $3)", j.ID, j.Run, name).Scan(&first)
	return first, j.noted(err)
}

func (j *Job) noted(err error) error {
	if sqlstate(err) == "PW002" {
		j.become(running, gone)
	}
	return err
}

func (j *Job) become(from, to int) {
	j.w.mu.Lock()
	defer j.w.mu.Unlock()
	if j.state == from {
		j.state = to
	}
}

// claimed is this row as a job that waits.
func (r row) claimed(w *Worker) *Job {
	j := r.Job
	j.w = w
	j.must, j.stop = context.WithCancelCause(context.Background())
	j.ctx, j.ask = context.WithCancelCause(j.must)
	return &j
}

// handBack releases the job if it waits.
func (j *Job) handBack() {
	if j.state == waiting {
		j.ends(&Report{Do: "release"})
	}
}

// busy: its handler runs.
func (j *Job) busy() bool { return j.state == running || j.state == committing || j.state == gone }

// told is what a row of kind stop does.
func (j *Job) told(why string) {
	switch {
	case why == "lost" && j.state == waiting:
		j.state = done
	case why == "lost" && j.state == running:
		j.state = gone
		j.stop(errLost)
	case why == "cancel":
		j.ask(errCancelled)
		j.handBack()
	}
}

// lose forgets the job, as its worker is dead.
func (j *Job) lose() {
	j.stop(errLost)
	if j.busy() {
		j.state = gone
	} else {
		j.state = done
	}
}

// run calls the handler, and waits for its end or for the time in which it has to stop.
func (j *Job) run() {
	end := make(chan error, 1)
	go func() { end <- j.call() }()
	var err error
	select {
	case err = <-end:
	case <-j.must.Done():
		why := context.Cause(j.must)
		select {
		case err = <-end:
			if report := (*Report)(nil); err != nil && !errors.As(err, &report) {
				err = fmt.Errorf("%w: %w", why, err)
			}
		case <-time.After(grace):
			j.w.deaf(j, why)
			err = why
		}
	}
	j.w.change(func(other *Job) {
		if other == j {
			j.ends(err)
		}
	})
}

func (j *Job) call() (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	if j.Delivery == "at_most_once" {
		var first bool
		start := j.w.pool.QueryRow(j.ctx, "SELECT pyworker.start_job($1, $2)", j.ID, j.Run)
		if start.Scan(&first) != nil || !first {
			return &Report{Do: "release"}
		}
	}
	if j.TimeoutS > 0 {
		over := func() { j.stop(fmt.Errorf("timed out after %v s", j.TimeoutS)) }
		defer time.AfterFunc(time.Duration(j.TimeoutS*float64(time.Second)), over).Stop()
	}
	result, err := j.w.Handlers[j.Task](j.ctx, j)
	if err == nil && result != nil {
		var text []byte
		text, err = json.Marshal(result)
		kept := storable(text)
		j.result = &kept
	}
	return err
}

// ends makes known how the job ended: without an error it is completed.
func (j *Job) ends(err error) {
	if j.state == gone {
		j.state = done
		return
	}
	j.state = ended
	if err == nil {
		return
	}
	report := &Report{Do: "fail", Text: fmt.Sprintf("%T: %.32000v", err, err)}
	if !errors.As(err, &report) && errors.Is(err, errStopped) {
		report = &Report{Do: "release"}
	}
	sent := *report // the handler may give the same one to many jobs
	sent.ID, sent.Run = j.ID, j.Run
	text, wrong := json.Marshal(sent)
	if wrong != nil {
		j.ends(wrong)
		return
	}
	j.report = storable(text)
}

// In JSON: a whole pair of surrogates, half a pair, U+0000, any other escape.
var escape = regexp.MustCompile(`(?i)\\ud[89ab]..\\ud[c-f]..|\\ud[89a-f]..|\\u0000|\\.`)

// storable is the text without what jsonb refuses.
func storable(text []byte) string {
	return escape.ReplaceAllStringFunc(string(text), func(found string) string {
		if len(found) == len(`\u0000`) {
			return `\ufffd`
		}
		return found
	})
}
