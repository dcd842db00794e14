package worker

import (
	"context"
	"errors"
	"log"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	openSQL = "SELECT pyworker.open_worker($1, protocol := 1)"
	workSQL = `SELECT row_to_json(w)
		FROM pyworker.work($1, $2, $3, $4::text[]::jsonb[], $5::text::jsonb, $6, $7, $8, $9) w`
	idle = 2500 * time.Millisecond
)

type opened struct {
	Worker     int64
	Channel    string
	StopAfterS float64 `json:"stop_after_s"`
}

type turning struct {
	former     int64         // the worker that this one replaces
	oneByOne   bool          // several reports were refused together
	doubt      time.Time     // when to ask again what became of a lost answer; zero: there is none
	gap        time.Duration // and how long after that once more
	maintained time.Time
}

// row is a row of work or beat. Null is a zero value.
type row struct {
	Kind, Why string
	AgainInS  float64 `json:"again_in_s"`
	NextInS   float64 `json:"next_in_s"`
	Job
}

func ask(ctx context.Context, conn *pgx.Conn, sql string, arguments ...any) ([]row, error) {
	rows, _ := conn.Query(ctx, sql, arguments...)
	found, err := pgx.CollectRows(rows, pgx.RowTo[row])
	if sqlstate(err) == "PW004" {
		err = errDead
	}
	return found, err
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (w *Worker) closeWorker(ctx context.Context, conn *pgx.Conn, worker int64) error {
	_, err := conn.Exec(ctx, "SELECT pyworker.close_worker($1)", worker)
	return err
}

// open registers a worker. The jobs of the former one can be claimed at once.
func (w *Worker) open(ctx context.Context, conn *pgx.Conn) error {
	if err := w.closeWorker(ctx, conn, w.former); err != nil {
		return err
	}
	var answer opened
	sent, info := time.Now(), map[string]any{"name": "go", "pid": os.Getpid(), "task_identifiers": w.tasks}
	if w.Queues != nil {
		info["queue_names"] = w.Queues
	}
	if w.Flags != nil {
		info["forbidden_flags"] = w.Flags
	}
	err := conn.QueryRow(ctx, openSQL, info).Scan(&answer)
	if sqlstate(err) == "PW006" {
		w.endWith(exitOld, 0)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.opened, w.beaten = answer, sent
	return err
}

// hear is done on each new connection for beats: a notification may have been missed.
func (w *Worker) hear(ctx context.Context, conn *pgx.Conn) error {
	defer w.poke()
	_, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{w.opened.Channel}.Sanitize())
	return err
}

// turns reports and claims.
func (w *Worker) turns(ctx context.Context, end context.CancelCauseFunc, l *link) {
	for {
		again := time.Duration(0)
		err := l.do(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
			again, err = w.turn(ctx, conn)
			return err
		})
		if errors.Is(err, errDead) {
			end(errDead)
		}
		if ctx.Err() != nil || w.stopping.Err() != nil && !w.has() {
			return
		}
		select {
		case <-w.wake:
		case <-time.After(again):
		case <-ctx.Done():
		}
	}
}

func (w *Worker) turn(ctx context.Context, conn *pgx.Conn) (again time.Duration, err error) {
	if !w.doubt.IsZero() && time.Now().After(w.doubt) {
		if _, err := w.beat(ctx, conn, false, true); err != nil {
			return 0, err
		}
		w.doubt, w.gap = time.Now().Add(w.gap), 2*w.gap
		if w.gap > 128*time.Second {
			w.doubt = time.Time{}
		}
	}
	if w.Maintain > 0 && time.Since(w.maintained) >= w.Maintain {
		w.maintained = time.Now()
		if _, err := conn.Exec(ctx, "SELECT pyworker.maintain()"); err != nil {
			return 0, err
		}
	}
	sent, room := w.due()
	if len(sent) == 0 && room <= 0 {
		return idle, nil
	}
	var ids, runs []int64
	var results []*string
	var reports []string
	for _, j := range sent {
		if j.report != "" {
			reports = append(reports, j.report)
		} else {
			ids, runs, results = append(ids, j.ID), append(runs, j.Run), append(results, j.result)
		}
	}
	others := "[" + strings.Join(reports, ",") + "]"
	rows, err := ask(ctx, conn, workSQL,
		w.opened.Worker, ids, runs, results, others, room, w.tasks, w.Queues, w.Flags)
	switch code := sqlstate(err); {
	case err == nil:
		return w.settle(sent, rows), nil
	case lost(err):
		w.doubt, w.gap = time.Now(), time.Second
	case isRefused(code) && len(sent) == 1:
		w.change(func(j *Job) {
			if j == sent[0] {
				j.ends(errors.New(err.Error())) // without the PgError's type and text, which may be at fault
			}
		})
	case isRefused(code):
		w.oneByOne = true
	}
	return 0, err
}

// due: the jobs to report, and for how many there is room.
func (w *Worker) due() (sent []*Job, room int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, j := range w.jobs {
		if j.state == ended {
			sent = append(sent, j)
		}
	}
	room = w.Concurrency + w.Prefetch - (len(w.jobs) - len(sent))
	if w.oneByOne = w.oneByOne && len(sent) > 1; w.oneByOne {
		sent = sent[:1]
	}
	if _, alone := w.load(); alone || w.stopping.Err() != nil {
		room = 0
	}
	return sent, room
}

// settle takes the answer to these reports.
func (w *Worker) settle(sent []*Job, rows []row) (again time.Duration) {
	faults := map[[2]int64]string{}
	var claimed []*Job
	for _, r := range rows {
		switch {
		case r.Kind == "turn":
			again = seconds(r.AgainInS)
		case r.Kind == "job":
			claimed = append(claimed, r.claimed(w))
		case r.Why != "stale":
			log.Printf("the report of job %d is %s", r.ID, r.Why)
			faults[[2]int64{r.ID, r.Run}] = r.Why
		}
	}
	w.change(func(j *Job) {
		if slices.Contains(sent, j) {
			j.state = done
		}
		if why, wrong := faults[[2]int64{j.ID, j.Run}]; wrong {
			j.ends(errors.New("its report is " + why))
		}
	})
	w.mu.Lock()
	w.jobs = append(w.jobs, claimed...)
	w.mu.Unlock()
	w.change(func(j *Job) {
		if w.stopping.Err() != nil {
			j.handBack()
		}
	})
	return again
}
