package worker

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	beatSQL = `SELECT row_to_json(b)
		FROM pyworker.beat($1, $2, $3, $4, to_jsonb($5::text), lost_answer := $6) b`
	checkSQL      = "SELECT pyworker.check_version($1)"
	schemaVersion = 1 // of the database with which this was tested
)

// beats keeps the worker alive until ctx ends.
func (w *Worker) beats(ctx context.Context, end context.CancelCauseFunc, l *link) {
	for ctx.Err() == nil {
		var next time.Duration
		answer := make(chan error, 1)
		go func() {
			answer <- l.do(w.over, func(ctx context.Context, conn *pgx.Conn) (err error) {
				next, err = w.beat(ctx, conn, !w.Pooler, false)
				return err
			})
		}()
		select {
		case err := <-answer:
			if errors.Is(err, errDead) {
				end(errDead)
			} else if err == nil {
				w.listen(ctx, l, next)
			}
		case <-time.After(6 * time.Second): // the next beat goes over another connection
		}
	}
}

// listen does what notifications say, until the next beat.
func (w *Worker) listen(ctx context.Context, l *link, next time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, next)
	defer cancel()
	l.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		for {
			note, err := conn.Conn().WaitForNotification(ctx)
			if err != nil || note.Payload == "cancel" {
				return err
			}
			w.poke()
			if note.Payload != "migrate" {
				continue
			}
			if _, err = conn.Exec(ctx, checkSQL, schemaVersion); sqlstate(err) == "PW006" {
				log.Print(err)
				w.endWith(exitOld, 1)
			}
		}
	})
}

func (w *Worker) beat(
	ctx context.Context, conn *pgx.Conn, lock, lostAnswer bool,
) (next time.Duration, err error) {
	ids, runs, condition := []int64{}, []int64{}, (*string)(nil)
	if w.stopping.Err() != nil {
		condition = &[]string{"stopping"}[0]
	}
	w.mu.Lock()
	for _, j := range w.jobs {
		if j.state != gone {
			ids, runs = append(ids, j.ID), append(runs, j.Run)
		}
	}
	w.mu.Unlock()
	sent := time.Now()
	rows, err := ask(ctx, conn, beatSQL, w.opened.Worker, ids, runs, lock, condition, lostAnswer)
	for _, r := range rows {
		switch r.Kind {
		case "dead":
			return 0, errDead
		case "alive":
			w.mu.Lock()
			if next = seconds(r.NextInS); sent.After(w.beaten) {
				w.beaten = sent
			}
			w.mu.Unlock()
		}
	}
	w.change(func(j *Job) {
		for _, r := range rows {
			if r.Kind == "stop" && r.ID == j.ID && r.Run == j.Run {
				j.told(r.Why)
			}
		}
	})
	return next, err
}
