package worker

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	beatSQL       = `SELECT row_to_json(b) FROM pyworker.beat($1, $2, $3, $4, to_jsonb($5::text), lost_answer := $6) b`
	schemaVersion = 1 // of the database with which this was tested
)

// beats keeps the worker alive until ctx ends, and returns the connection that has its lock.
func (w *Worker) beats(ctx context.Context, end context.CancelCauseFunc) *link {
	listen := "LISTEN " + pgx.Identifier{w.opened.Channel}.Sanitize()
	l, forget, heard := newLink(w.config, "4000", listen), func() {}, (*pgx.Conn)(nil)
	for ctx.Err() == nil {
		var next time.Duration
		answer := make(chan error, 1)
		call, cancel := context.WithCancel(w.over)
		go func(l *link) {
			answer <- l.do(call, func(ctx context.Context, conn *pgx.Conn) (err error) {
				next, err = w.beat(ctx, conn, !w.Pooler, false)
				return err
			})
		}(l)
		select {
		case err := <-answer:
			cancel()
			if errors.Is(err, errDead) {
				end(errDead)
			} else if err == nil {
				forget()
				if l.conn != heard { // nothing was heard until now
					heard = l.conn
					w.poke()
				}
				w.listen(ctx, l.conn, next)
			}
		case <-time.After(6 * time.Second): // its lock is worth keeping until another connection has answered
			late := l
			forget()
			forget = func() {
				cancel()
				go func() { answer <- <-answer; late.close() }()
			}
			l = newLink(w.config, "4000", listen)
		}
	}
	forget()
	return l
}

// listen does what notifications say, until the next beat.
func (w *Worker) listen(ctx context.Context, conn *pgx.Conn, next time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, next)
	defer cancel()
	for {
		note, err := conn.WaitForNotification(ctx)
		if err != nil || note.Payload == "cancel" {
			return
		}
		if note.Payload != "migrate" {
			w.poke()
		} else if _, err := conn.Exec(ctx, "SELECT pyworker.check_version($1)", schemaVersion); sqlstate(err) == "PW006" {
			log.Print(err)
			w.endWith(exitOld, 1)
		}
	}
}

func (w *Worker) beat(ctx context.Context, conn *pgx.Conn, lock, lostAnswer bool) (next time.Duration, err error) {
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
