// River: the settings of its own benchmark command, 2,000 workers, a fetch cooldown of 2 ms.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

type Noop struct {
	N  int    `json:"n"`
	To string `json:"to"`
}
type Unique Noop
type Stamp struct {
	T float64 `json:"t"`
}
type Steady Stamp
type Fail Noop

func (Noop) Kind() string   { return "noop" }
func (Unique) Kind() string { return "unique" }
func (Stamp) Kind() string  { return "stamp" }
func (Steady) Kind() string { return "steady" }
func (Fail) Kind() string   { return "fail" }
func (Unique) InsertOpts() river.InsertOpts {
	return river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}
}

var (
	ctx    = context.Background()
	trail  *os.File
	count  atomic.Int64
	client *river.Client[pgx.Tx]
	loops  = 1
)

// Seconds on a clock that all processes of this machine share: CLOCK_MONOTONIC, which package time hides.
func now() float64 {
	var found syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(&found)), 0)
	return float64(found.Nano()) / 1e9
}

func payload(n int) Noop { return Noop{n, "ada@example.org"} }

func pool(size int) *pgxpool.Pool {
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	config.MaxConns = int32(size)
	found, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		panic(err)
	}
	return found
}

func work(quick bool) error {
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(context.Context, *river.Job[Noop]) error {
		if count.Add(1)%1000 == 0 {
			fmt.Fprintf(trail, "%f 1000\n", now())
		}
		return nil
	}))
	river.AddWorker(workers, river.WorkFunc(func(_ context.Context, job *river.Job[Stamp]) error {
		fmt.Fprintf(trail, "%f\n", now()-job.Args.T)
		return nil
	}))
	river.AddWorker(workers, river.WorkFunc(func(_ context.Context, job *river.Job[Steady]) error {
		fmt.Fprintf(trail, "%f\n", now()-job.Args.T)
		time.Sleep(5 * time.Millisecond)
		return nil
	}))
	river.AddWorker(workers, river.WorkFunc(func(_ context.Context, job *river.Job[Fail]) error {
		if job.Attempt == 1 {
			return errors.New("on purpose")
		}
		return nil
	}))
	cooldown, poll := 2*time.Millisecond, 20*time.Millisecond
	if quick {
		poll = river.FetchPollIntervalDefault // notifications wake it
	}
	worker, err := river.NewClient(riverpgxv5.New(pool(20)), &river.Config{
		FetchCooldown: cooldown, FetchPollInterval: poll,
		Logger:  slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2000}},
		Workers: workers,
	})
	if err != nil {
		return err
	}
	return worker.Start(ctx)
}

func calls(n, loops int, call func(int) error) error {
	var next atomic.Int64
	var group sync.WaitGroup
	failed := make(chan error, loops)
	for range loops {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := call(i); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	group.Wait()
	close(failed)
	return <-failed
}

func insert(args river.JobArgs) error {
	_, err := client.Insert(ctx, args, nil)
	return err
}

func run(verb string, arguments []float64) (err error) {
	n := 0
	if len(arguments) > 0 {
		n = int(arguments[0])
	}
	switch verb {
	case "setup":
		migrator, err := rivermigrate.New(riverpgxv5.New(pool(2)), nil)
		if err == nil {
			_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
		}
		return err
	case "connect":
		loops = n
		// It notifies workers no more often than its own cooldown.
		client, err = river.NewClient(riverpgxv5.New(pool(n)), &river.Config{FetchCooldown: 2 * time.Millisecond})
	case "add":
		return calls(n, loops, func(i int) error { return insert(payload(i)) })
	case "add_unique":
		return calls(n, loops, func(i int) error { return insert(Unique(payload(i % int(arguments[1])))) })
	case "bulk":
		for start := 0; start < n && err == nil; start += 1000 {
			batch := make([]river.InsertManyParams, min(1000, n-start))
			for i := range batch {
				batch[i].Args = payload(start + i)
			}
			_, err = client.InsertManyFast(ctx, batch)
		}
	case "latency":
		for i := 0; i < n && err == nil; i++ {
			time.Sleep(time.Duration(arguments[1] * (0.5 + rand.Float64()) * 1e6))
			err = insert(Stamp{now()})
		}
	case "work":
		return work(len(arguments) > 1 && arguments[1] == 1)
	default:
		return errors.New("no such verb")
	}
	return err
}

func main() {
	trail, _ = os.OpenFile(os.Getenv("BENCH_TRAIL"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	out := json.NewEncoder(os.Stdout)
	out.Encode(map[string]any{"ok": "ready"})
	for lines := bufio.NewReader(os.Stdin); ; {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return
		}
		var words []any
		if err = json.Unmarshal(line, &words); err == nil {
			numbers := []float64{}
			for _, word := range words[1:] {
				switch value := word.(type) {
				case float64:
					numbers = append(numbers, value)
				case bool:
					numbers = append(numbers, map[bool]float64{true: 1}[value])
				}
			}
			err = run(words[0].(string), numbers)
		}
		if err != nil {
			out.Encode(map[string]any{"error": err.Error()})
		} else {
			out.Encode(map[string]any{"ok": nil})
		}
	}
}
