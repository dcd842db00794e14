// Package worker runs jobs of pyworker's queue, by the rules of docs/protocol.md.
package worker

import (
	"cmp"
	"context"
	"errors"
	"log"
	"maps"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	grace    = 3 * time.Second // for a handler that must stop: with stop_after_s, less than ttl_s
	exitDeaf = 70              // a handler did not stop
	exitOld  = 56              // this database and this runner do not fit
)

var (
	errDead   = errors.New("this worker was declared dead")
	errSilent = errors.New("the database has not answered for too long")
)

// Worker claims jobs and calls their handlers.
type Worker struct {
	URL           string // "": PGHOST and its kin
	Handlers      map[string]Handler
	Concurrency   int           // handlers that run at once
	Prefetch      int           // jobs that wait here besides
	Queues, Flags []string      // the queues to take jobs of, nil: all; the flags of jobs to leave alone
	Pooler        bool          // there is a transaction pooler between
	Patience      time.Duration // for handlers that run when the worker is told to end
	Maintain      time.Duration // how often to call maintain(); 0: another process does

	tasks          []string
	config         *pgxpool.Config
	pool           *pgxpool.Pool // for what handlers call
	signals        chan os.Signal
	stopping, over context.Context // told to end; no time is left to report
	wake           chan struct{}   // there may be something to claim, to report or to forget

	mu     sync.Mutex
	opened opened
	jobs   []*Job    // in the order of their claims
	beaten time.Time // when the last beat that was answered was sent
	code   int

	turning // of the goroutine that calls work
}

// Run works until SIGTERM or SIGINT, and returns the exit code. A second signal stops what runs.
func (w *Worker) Run() int {
	config, err := configured(w.URL)
	if err != nil {
		log.Print(err)
		return 2
	}
	config.MaxConns = int32(2 * w.Concurrency) // a transaction, and another call during it
	w.config, w.tasks = config, slices.Sorted(maps.Keys(w.Handlers))
	w.pool, _ = pgxpool.NewWithConfig(context.Background(), config.Copy())
	w.wake, w.signals = make(chan struct{}, 1), make(chan os.Signal, 2)
	signal.Notify(w.signals, syscall.SIGTERM, syscall.SIGINT)
	var stop, end context.CancelFunc
	w.stopping, stop = context.WithCancel(context.Background())
	w.over, end = context.WithCancel(context.Background())
	go w.end(stop, end)
	for w.session() {
	}
	return w.code
}

func (w *Worker) end(stop, over func()) {
	<-w.signals
	stop()
	w.change((*Job).handBack)
	log.Print("stopping: the handlers that run may end")
	select {
	case <-w.signals:
	case <-time.After(w.Patience):
	}
	w.change(func(j *Job) {
		if j.busy() {
			j.stop(errStopped)
		}
	})
	time.Sleep(2 * grace)
	over()
}

// endWith ends the process with this code: as a signal does, or as two do.
func (w *Worker) endWith(code, signals int) {
	w.mu.Lock()
	w.code = cmp.Or(w.code, code) // the first reason
	w.mu.Unlock()
	for range signals {
		w.signals <- syscall.SIGTERM
	}
}

// session is one registered worker, until it ends or others may have its jobs.
func (w *Worker) session() (another bool) {
	turns := w.link("0", nil)
	defer turns.Close()
	w.turning = turning{former: w.opened.Worker}
	for turns.do(w.stopping, w.open) != nil {
		if w.code > 0 || w.stopping.Err() != nil {
			return false
		}
	}
	beats := w.link("4000", w.hear)
	ctx, end := context.WithCancelCause(w.over)
	go w.guard(ctx, end)
	var beating sync.WaitGroup
	beating.Go(func() { w.beats(ctx, end, beats) })
	w.turns(ctx, end, turns)
	end(nil)
	if why := context.Cause(ctx); why == errDead || why == errSilent {
		log.Print(why)
		w.change((*Job).lose)
		if w.code == exitDeaf {
			os.Exit(exitDeaf)
		}
		for w.has() {
			<-w.wake
		}
		go beats.Close() // after its late answers
		return w.stopping.Err() == nil
	}
	if w.has() {
		w.code = exitDeaf // no time was left to report
	}
	beating.Wait()
	beats.do(w.over, func(ctx context.Context, conn *pgx.Conn) error {
		return w.closeWorker(ctx, conn, w.opened.Worker)
	})
	return false
}

// guard ends the session when beats remain unanswered.
func (w *Worker) guard(ctx context.Context, end context.CancelCauseFunc) {
	for ctx.Err() == nil {
		time.Sleep(200 * time.Millisecond)
		w.mu.Lock()
		if w.silent() {
			end(errSilent)
		}
		w.mu.Unlock()
	}
}

// silent: for so long no beat was answered that others may take the jobs. The wall clock goes on
// while the machine sleeps, and the monotonic one is never set back.
func (w *Worker) silent() bool {
	since := max(time.Since(w.beaten), time.Now().Round(0).Sub(w.beaten.Round(0)))
	return since >= seconds(w.opened.StopAfterS)
}

// change does this to all jobs, forgets those that are done, and begins what may begin.
func (w *Worker) change(do func(*Job)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, j := range w.jobs {
		do(j)
	}
	w.jobs = slices.DeleteFunc(w.jobs, func(j *Job) bool { return j.state == done })
	busy, alone := w.load()
	for _, j := range w.jobs {
		if j.state != waiting {
			continue
		}
		if busy >= w.Concurrency || alone || j.Crashes > 0 && busy > 0 || w.silent() {
			break
		}
		j.state, busy, alone = running, busy+1, j.Crashes > 0
		go j.run()
	}
	w.poke()
}

// load: how many handlers run, and whether one of them has to run alone.
func (w *Worker) load() (busy int, alone bool) {
	for _, j := range w.jobs {
		if j.busy() {
			busy, alone = busy+1, alone || j.Crashes > 0
		}
	}
	return busy, alone
}

func (w *Worker) has() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.jobs) > 0
}

func (w *Worker) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// deaf: this handler does not stop. Only the end of the process stops it, before its next run if it can.
func (w *Worker) deaf(j *Job, why error) {
	log.Printf("job %d, %s, does not stop: %v", j.ID, j.Task, why)
	if errors.Is(why, errLost) {
		os.Exit(exitDeaf)
	}
	go w.endWith(exitDeaf, 2)
}
