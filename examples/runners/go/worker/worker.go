// Package worker runs jobs of pyworker's queue, by the rules of docs/protocol.md.
package worker

import (
	"cmp"
	"context"
	"errors"
	"log"
	"maps"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	prefetch = 10               // jobs that wait here, besides those that run
	patience = 25 * time.Second // for handlers that run when the worker is told to end
	grace    = 2 * time.Second  // for a handler that must stop: with stop_after_s, less than ttl_s
	exitOld  = 56               // this database and this runner do not fit
	exitDeaf = 70               // a handler did not stop, or the database does not answer
)

type opened struct {
	Worker     int64
	StopAfterS float64 `json:"stop_after_s"`
}

type worker struct {
	handlers           map[string]Handler
	tasks              []string
	schema             string
	concurrency        int
	pool               *pgxpool.Pool   // for what handlers call
	wake               chan struct{}   // there may be something to claim or to report
	over               context.Context // of both loops
	end                func()
	migrated, maintain atomic.Bool // what the next turn has to call
	beatIn             atomic.Int64

	mu       sync.Mutex    // of all below
	opened   *opened       // nil: the next turn opens a worker
	former   int64         // the worker that was opened last
	jobs     []*Job        // claimed and not reported, in the order of their claims
	running  int           // handlers, also those of lost jobs
	alone    bool          // the handler that runs may end its process
	beaten   time.Time     // when the last beat that was answered was sent
	again    time.Time     // when to claim again
	doubt    time.Time     // when to ask again what became of a lost answer; zero: there is none
	gap      time.Duration // and how long after that once more
	oneByOne bool          // several reports were refused together
	stopping bool
	code     int
}

// Run works until SIGTERM or SIGINT, and returns the exit code. A second signal stops what runs.
func Run(handlers map[string]Handler) int {
	concurrency, wrong := strconv.Atoi(cmp.Or(os.Getenv("PYWORKER_RUN_CONCURRENCY"), "10"))
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err = cmp.Or(err, wrong); err != nil {
		log.Fatal(err)
	}
	alive := net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3}
	config.ConnConfig.DialFunc = (&net.Dialer{KeepAliveConfig: alive}).DialContext
	config.ConnConfig.ConnectTimeout = 5 * time.Second
	config.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	config.MaxConns = int32(2 * concurrency) // a transaction, and another call during it
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		log.Fatal(err)
	}
	w := &worker{
		handlers: handlers, tasks: slices.Sorted(maps.Keys(handlers)), concurrency: concurrency,
		pool: pool, wake: make(chan struct{}, 1),
		schema: pgx.Identifier{cmp.Or(os.Getenv("PYWORKER_SCHEMA"), "pyworker")}.Sanitize(),
	}
	w.beatIn.Store(int64(time.Second / 5))
	w.over, w.end = context.WithCancel(context.Background())
	go w.watch()
	beating := make(chan *pgx.Conn)
	go func() { beating <- w.keep("4000", "LISTEN "+w.schema, 500*time.Millisecond, w.beats) }()
	w.keep("0", "", 5*time.Second, w.turn)
	if conn := <-beating; conn != nil {
		ask[any](context.Background(), w, conn, "SELECT pyworker.close_worker($1)", w.former)
	}
	return w.code
}

// watch waits for signals, and for a database that does not answer.
func (w *worker) watch() {
	signals, patience := make(chan os.Signal, 2), patience
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	for {
		select {
		case <-signals:
			w.mu.Lock()
			w.stop(patience, 0)
			patience = 0
		case <-time.After(200 * time.Millisecond):
			w.mu.Lock()
			if w.silent() {
				w.dead(errors.New("the database does not answer"))
			}
		}
		w.mu.Unlock()
	}
}

// silent: for so long no beat was answered that others may take the jobs. The wall clock goes on
// while the machine sleeps, and the monotonic one is never set back.
func (w *worker) silent() bool {
	since := max(time.Since(w.beaten), time.Now().Round(0).Sub(w.beaten.Round(0)))
	return w.opened != nil && since >= seconds(w.opened.StopAfterS)
}

func (w *worker) isSilent() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.silent()
}

// begin forgets jobs, and starts the handlers of those that wait. The caller holds the lock, as of all below.
func (w *worker) begin() {
	w.jobs = slices.DeleteFunc(w.jobs, func(j *Job) bool { return j.gone })
	for _, j := range w.jobs {
		if j.begun || j.ended {
			continue
		} else if w.stopping {
			j.end(nil, errReleased)
			continue
		} else if w.running >= w.concurrency || w.alone || j.Crashes > 0 && w.running > 0 || w.silent() {
			break
		}
		w.running, w.alone, j.begun = w.running+1, j.Crashes > 0, true
		go j.run()
	}
	if w.stopping && len(w.jobs) == 0 {
		w.end()
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// dead: other workers have the jobs, or may have them soon.
func (w *worker) dead(why error) {
	log.Print(why)
	w.opened = nil
	for _, j := range w.jobs {
		j.lose()
	}
	w.begin()
}

// stop ends the worker. The handlers that run have so much time.
func (w *worker) stop(patience time.Duration, code int) {
	log.Printf("stopping: the handlers that run have %v", patience)
	w.stopping, w.code = true, cmp.Or(w.code, code)
	w.begin()
	time.AfterFunc(patience, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, j := range w.jobs {
			j.stop(errReleased)
		}
		time.AfterFunc(10*time.Second, func() { os.Exit(exitDeaf) })
	})
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
