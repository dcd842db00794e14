// River: its defaults, with 10 workers. It rescues the jobs of a dead worker after an hour
// (RescueStuckJobsAfter). Sequences are in its paid edition.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

type Payload struct {
	Op int     `json:"op"`
	Ms float64 `json:"ms"`
}
type Plain Payload
type Once Payload
type Effect Payload
type Unique struct {
	Op  int     `json:"op"`
	Ms  float64 `json:"ms"`
	Key string  `json:"key" river:"unique"`
}

func (Plain) Kind() string  { return "plain" }
func (Once) Kind() string   { return "once" }
func (Effect) Kind() string { return "effect" }
func (Unique) Kind() string { return "unique" }

var (
	ctx  = context.Background()
	runs *os.File
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func write(event map[string]any) {
	event["t"] = float64(time.Now().UnixNano()) / 1e9
	event["process"] = os.Getpid()
	line, err := json.Marshal(event)
	check(err)
	runs.Write(append(line, '\n'))
}

func run(ctx context.Context, op int, ms float64, job int64, attempt int) error {
	event := func(what string) { write(map[string]any{"what": what, "op": op, "job": job, "attempt": attempt}) }
	event("start")
	select {
	case <-time.After(time.Duration(ms * 1e6)):
	case <-ctx.Done():
		return ctx.Err()
	}
	event("end")
	return nil
}

func work(pool *pgxpool.Pool) {
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, job *river.Job[Plain]) error {
		return run(ctx, job.Args.Op, job.Args.Ms, job.ID, job.Attempt)
	}))
	river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, job *river.Job[Once]) error {
		return run(ctx, job.Args.Op, job.Args.Ms, job.ID, job.Attempt)
	}))
	river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, job *river.Job[Unique]) error {
		return run(ctx, job.Args.Op, job.Args.Ms, job.ID, job.Attempt)
	}))
	river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, job *river.Job[Effect]) error {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer tx.Rollback(ctx)
		_, err = tx.Exec(ctx, "insert into public.effects values ($1, $2)", job.Args.Op, job.Attempt)
		if err != nil {
			return err
		}
		if err = run(ctx, job.Args.Op, job.Args.Ms, job.ID, job.Attempt); err != nil {
			return err
		}
		if _, err = river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job); err != nil {
			return err
		}
		return tx.Commit(ctx)
	}))
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Logger:  slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 10}},
		Workers: workers,
	})
	check(err)
	check(client.Start(ctx))
	write(map[string]any{"what": "process", "phase": "up"})
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	select {
	case <-stop:
		check(client.Stop(ctx))
	case <-client.Stopped():
	}
}

type Call struct {
	Op    int     `json:"op"`
	Kind  string  `json:"kind"`
	End   string  `json:"end"`
	Key   string  `json:"key"`
	Delay float64 `json:"delay"`
	Ms    float64 `json:"ms"`
}

func add(client *river.Client[pgx.Tx], tx pgx.Tx, call Call) (err error) {
	switch call.Kind {
	case "plain":
		_, err = client.InsertTx(ctx, tx, Plain{call.Op, call.Ms}, nil)
	case "effect":
		_, err = client.InsertTx(ctx, tx, Effect{call.Op, call.Ms}, nil)
	case "once":
		_, err = client.InsertTx(ctx, tx, Once{call.Op, call.Ms}, &river.InsertOpts{MaxAttempts: 1})
	case "unique":
		_, err = client.InsertTx(ctx, tx, Unique{call.Op, call.Ms, call.Key}, &river.InsertOpts{
			ScheduledAt: time.Now().Add(time.Duration(call.Delay * 1e9)),
			UniqueOpts:  river.UniqueOpts{ByArgs: true},
		})
	default:
		err = errors.New("no such kind")
	}
	return err
}

func answer(call Call, phase string, more string) {
	line, _ := json.Marshal(map[string]any{"op": call.Op, "phase": phase, "error": more})
	fmt.Println(string(line))
}

func one(client *river.Client[pgx.Tx], pool *pgxpool.Pool, call Call) error {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	if err = add(client, tx, call); err != nil {
		return err
	}
	switch call.End {
	case "hang":
		answer(call, "added", "")
		select {}
	case "rollback":
		err = tx.Rollback(ctx)
	default:
		err = tx.Commit(ctx)
	}
	if err == nil {
		answer(call, map[string]string{"commit": "ok", "rollback": "rolled back"}[call.End], "")
	}
	return err
}

func produce(pool *pgxpool.Pool) {
	// Its logger writes to standard output by default, where our answers go.
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: logger})
	check(err)
	fmt.Println(`{"ready": true}`)
	for lines := bufio.NewReader(os.Stdin); ; {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return
		}
		var call Call
		check(json.Unmarshal(line, &call))
		if err = one(client, pool, call); err != nil {
			answer(call, "unknown", err.Error())
		}
	}
}

func main() {
	var err error
	runs, err = os.OpenFile(os.Getenv("REPORT_RUNS"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	check(err)
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	check(err)
	switch os.Args[1] {
	case "setup":
		migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
		check(err)
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
		check(err)
	case "produce":
		produce(pool)
	case "work":
		work(pool)
	}
}
