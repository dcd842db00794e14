package main

// The handlers of tests/examples/test_runners.py for examples/runners/go.

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"time"

	"example.org/pyworker/worker"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var pool = func() *pgxpool.Pool {
	made, err := pgxpool.New(context.Background(), "")
	if err != nil {
		panic(err)
	}
	return made
}()

func see(job *worker.Job, told any) {
	insert := "insert into seen (job_id, attempts, task, told) values ($1, $2, $3, $4::bool::text)"
	if _, err := pool.Exec(context.Background(), insert, job.ID, job.Attempts, job.Task, told); err != nil {
		panic(err)
	}
}

func note(ctx context.Context, job *worker.Job) (any, error) {
	payload := struct{ MS int }{20}
	err := json.Unmarshal(job.Payload, &payload)
	see(job, nil)
	time.Sleep(time.Duration(payload.MS) * time.Millisecond)
	return nil, err
}

func wait(ctx context.Context, job *worker.Job) (any, error) {
	see(job, nil)
	<-ctx.Done()
	return nil, ctx.Err()
}

func secondTime(job *worker.Job, why string) (any, error) {
	if job.Attempts == 1 {
		return nil, errors.New(why)
	}
	return nil, nil
}

func act(ctx context.Context, job *worker.Job) (any, error) {
	var payload struct {
		What, Error string
		DelayS      any `json:"delay_s"`
	}
	err := json.Unmarshal(job.Payload, &payload)
	see(job, nil)
	return err, &worker.Report{Do: payload.What, Text: payload.Error, DelayS: payload.DelayS}
}

func main() {
	os.Exit(worker.Run(handlers, "act_once"))
}

var handlers = map[string]worker.Handler{
	"note": note, "deliver": note, "in_turn": note, "wait": wait,
	"flaky": func(ctx context.Context, job *worker.Job) (any, error) {
		see(job, nil)
		return secondTime(job, "not yet")
	},
	"book": func(ctx context.Context, job *worker.Job) (any, error) {
		see(job, nil)
		return nil, job.Transaction(func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "insert into booked values ($1)", job.ID)
			time.Sleep(20 * time.Millisecond)
			return err
		})
	},
	"twice": func(ctx context.Context, job *worker.Job) (any, error) {
		book := func(id int64) error {
			return job.Transaction(func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "insert into booked values ($1)", id)
				return err
			})
		}
		err := book(job.ID)
		book(-1)
		_, again := job.Once("mail")
		see(job, strings.Contains(again.Error(), "PW002"))
		return nil, err
	},
	"act": act, "act_once": act,
	"answer": func(ctx context.Context, job *worker.Job) (any, error) { return job.Payload, nil },
	"nul": func(ctx context.Context, job *worker.Job) (any, error) {
		return json.RawMessage(`{"text": "a\u0000b\ud800"}`), nil
	},
	"huge":  func(ctx context.Context, job *worker.Job) (any, error) { return json.RawMessage("1e200000"), nil },
	"panic": func(ctx context.Context, job *worker.Job) (any, error) { panic("boom") },
	"step": func(ctx context.Context, job *worker.Job) (any, error) {
		first, err := job.Once("mail")
		see(job, first)
		if err != nil {
			return nil, err
		}
		return secondTime(job, "again")
	},
	"deaf": func(ctx context.Context, job *worker.Job) (any, error) {
		see(job, nil)
		time.Sleep(30 * time.Second)
		return nil, nil
	},
}
