package main

// What recorded_tasks.py has for `pyworker run`, for the Go runner: see tests/torture.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"time"

	"example.org/pyworker/worker"
	"github.com/jackc/pgx/v5"
)

var file = func() *os.File {
	name := fmt.Sprintf("%s/go-%d.jsonl", os.Getenv("PYWORKER_HISTORY"), os.Getpid())
	made, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		panic(err)
	}
	return made
}()

func record(what string, job *worker.Job, more map[string]any) {
	more["what"], more["t"] = what, float64(time.Now().UnixMicro())/1e6
	more["id"], more["run"], more["pid"] = job.ID, job.Run, os.Getpid()
	line, err := json.Marshal(more)
	if err == nil {
		_, err = file.Write(append(line, '\n'))
	}
	if err != nil {
		panic(err)
	}
}

func orNull(name string) any {
	if name == "" {
		return nil
	}
	return name
}

func recorded(job *worker.Job, work func() error) error {
	record("begin", job, map[string]any{"parent": os.Getpid(), "task": job.Task,
		"sequence": orNull(job.Sequence), "queue": orNull(job.Queue)})
	defer record("end", job, map[string]any{})
	if err := work(); err != nil {
		return err
	}
	if rand.Float64() < 0.1 {
		return errors.New("as it happens")
	}
	return nil
}

func pause() {
	time.Sleep(time.Duration(rand.Intn(30)) * time.Millisecond)
}

func plain(ctx context.Context, job *worker.Job) (any, error) {
	return nil, recorded(job, func() error { pause(); return nil })
}

func effect(ctx context.Context, job *worker.Job) (any, error) {
	return nil, job.Transaction(func(tx pgx.Tx) error {
		return recorded(job, func() error {
			_, err := tx.Exec(ctx, "insert into public.effects values ($1, $2)", job.ID, job.Run)
			pause()
			return err
		})
	})
}

func main() {
	os.Exit(worker.Run(map[string]worker.Handler{
		"plain": plain, "plain_async": plain, "only_once": plain, "effect": effect, "effect_async": effect,
		"member": plain,
	}))
}
