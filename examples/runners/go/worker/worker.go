// Package worker runs jobs of pyworker's queue, by the rules of docs/protocol.md.
package worker

import (
	"cmp"
	"context"
	"errors"
	"log"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
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

	openSQL = "SELECT pyworker.open_worker($2, protocol := 1) FROM pyworker.close_worker($1)"
	workSQL = `SELECT json_agg(w) FROM pyworker.read_reports($2, $3, $4) r,
		pyworker.work($1, r.done_ids, r.done_runs, r.done_results, r.reports, $5, $6) w`
	beatSQL = "SELECT json_agg(b) FROM pyworker.beat($1, $2, $3, $4, lost_answer := $5) b"
)

var isLost = regexp.MustCompile(`^(|08...|57P0[123]|25006)$`).MatchString // of a SQLSTATE

type opened struct {
	Worker     int64
	StopAfterS float64 `json:"stop_after_s"`
}

// row is a row of work or beat. Null is a zero value.
type row struct {
	Kind, Why string
	AgainInS  float64 `json:"again_in_s"`
	NextInS   float64 `json:"next_in_s"`
	Job
}

type worker struct {
	handlers    map[string]Handler
	tasks       []string
	schema      string
	concurrency int
	pool        *pgxpool.Pool   // for work, and for what handlers call
	ear         *pgx.Conn       // for beat: it has the worker's lock, and hears notifications
	formerEars  []*pgx.Conn     // have not answered: the lock is worth keeping until another one has
	wake        chan struct{}   // there may be something to claim or to report
	over        context.Context // of both loops
	end         func()

	mu       sync.Mutex  // of all below
	opened   *opened     // nil: the next turn opens a worker
	former   int64       // the worker that was opened last
	jobs     []*Job      // claimed and not reported, in the order of their claims
	running  int         // handlers, also those of lost jobs
	alone    bool        // the handler that runs may end its process
	beaten   time.Time   // when the last beat that was answered was sent
	again    time.Time   // when to claim again
	doubts   []time.Time // when to ask which jobs a lost answer had
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
	config.MaxConns = int32(2*concurrency + 2) // each handler: a transaction, and another call during it
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		log.Fatal(err)
	}
	w := &worker{
		handlers: handlers, tasks: slices.Sorted(maps.Keys(handlers)), concurrency: concurrency,
		schema: pgx.Identifier{cmp.Or(os.Getenv("PYWORKER_SCHEMA"), "pyworker")}.Sanitize(),
		pool:   pool, wake: make(chan struct{}, 1),
	}
	w.over, w.end = context.WithCancel(context.Background())
	var loops sync.WaitGroup
	loops.Go(func() { w.repeat(500*time.Millisecond, w.beats) })
	loops.Go(func() { w.repeat(5*time.Second, w.turn) })
	signals, patience := make(chan os.Signal, 2), patience
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	for w.over.Err() == nil {
		select {
		case <-signals:
			w.locked(func() { w.stop(patience, 0) })
			patience = 0
		case <-time.After(200 * time.Millisecond):
			w.locked(w.fence)
		case <-w.over.Done():
		}
	}
	loops.Wait()
	if w.ear != nil { // it has the lock
		ask[any](context.Background(), w, w.ear, "SELECT pyworker.close_worker($1)", w.former)
	}
	return w.code
}

// repeat repeats a step until the worker ends. After an error it waits, each time twice as long.
func (w *worker) repeat(most time.Duration, step func() error) {
	for failures := 0; w.over.Err() == nil; {
		err := step()
		if err == nil {
			failures = 0
			continue
		}
		log.Printf("the database: %v", err)
		w.locked(func() {
			w.again = time.Time{}
			switch code := sqlstate(err); {
			case code == "PW004":
				w.dead(err)
			case code == "PW006":
				w.stop(patience, exitOld)
			case isLost(code): // the lost call may still commit, so beat asks more than once
				w.doubts = nil
				for s := 1.0; s <= 128; s *= 2 {
					w.doubts = append(w.doubts, time.Now().Add(seconds(s-1)))
				}
			}
		})
		wait := min(100*time.Millisecond<<min(failures, 6), most)
		time.Sleep(wait/2 + rand.N(wait/2))
		failures++
	}
}

type database interface {
	QueryRow(ctx context.Context, sql string, arguments ...any) pgx.Row
}

// ask runs one statement, which answers with one value.
func ask[T any](
	ctx context.Context, w *worker, on database, sql string, arguments ...any,
) (answer T, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	sql = strings.ReplaceAll(sql, "pyworker.", w.schema+".")
	err = on.QueryRow(ctx, sql, arguments...).Scan(&answer)
	return answer, err
}

func claimsOf(jobs []*Job) (ids, runs []int64) {
	ids, runs = []int64{}, []int64{}
	for _, j := range jobs {
		ids, runs = append(ids, j.ID), append(runs, j.Run)
	}
	return ids, runs
}

func sqlstate(err error) string {
	if e := (*pgconn.PgError)(nil); errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// turn makes the first call that is due.
func (w *worker) turn() error {
	w.mu.Lock()
	me, doubt := w.opened, len(w.doubts) > 0 && time.Now().After(w.doubts[0])
	if doubt {
		w.doubts = w.doubts[1:]
	}
	w.mu.Unlock()
	switch {
	case me == nil:
		return w.open()
	case doubt:
		_, err := w.beat(w.pool, true)
		return err
	}
	return w.work(me)
}

// open opens a worker. The jobs of the former one can be claimed at once.
func (w *worker) open() error {
	sent, info := time.Now(), map[string]any{"name": "go", "pid": os.Getpid(), "task_identifiers": w.tasks}
	answer, err := ask[opened](context.Background(), w, w.pool, openSQL, w.former, info)
	if err == nil {
		w.locked(func() {
			w.opened, w.former, w.beaten, w.again, w.doubts = &answer, answer.Worker, sent, time.Time{}, nil
		})
	}
	return err
}

// work reports and claims, or waits until there is a reason to.
func (w *worker) work(me *opened) error {
	var ended []*Job
	reports := []string{}
	w.mu.Lock()
	for _, j := range w.jobs {
		if j.report != "" {
			ended, reports = append(ended, j), append(reports, j.report)
		}
	}
	room, wait := max(w.concurrency+prefetch-len(w.jobs)+len(ended), 0), 2*time.Second
	if w.stopping {
		room = 0
	} else if room > 0 {
		wait = min(wait, time.Until(w.again))
	}
	if len(ended) == 0 && wait > 0 {
		w.mu.Unlock()
		select {
		case <-w.wake:
		case <-time.After(wait):
		}
		return nil
	}
	w.again = time.Now().Add(time.Hour) // a notification from now on makes it zero
	w.mu.Unlock()
	ids, runs := claimsOf(ended)
	rows, err := ask[[]*row](
		context.Background(), w, w.pool, workSQL, me.Worker, ids, runs, reports, room, w.tasks)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil || me != w.opened { // declared dead meanwhile: none of this is ours
		return err
	}
	w.forget(ended...)
	for _, r := range rows {
		switch {
		case r.Kind == "job":
			r.w = w
			r.ctx, r.cancel = context.WithCancelCause(context.Background())
			w.jobs = append(w.jobs, &r.Job)
		case r.Kind == "turn" && !w.again.IsZero():
			w.again = time.Now().Add(seconds(r.AgainInS))
		case r.Kind == "refused":
			log.Printf("the report of job %d is refused: %s", r.ID, r.Why)
		}
	}
	w.begin()
	return nil
}

// beats beats, and hears notifications until the next time.
func (w *worker) beats() (err error) {
	if w.ear == nil {
		if err = w.listen(); err != nil {
			return err
		}
	}
	var next time.Duration
	answered := make(chan error, 1)
	go func(ear *pgx.Conn) {
		in, err := w.beat(ear, false)
		next = in
		answered <- err
	}(w.ear)
	select {
	case err = <-answered:
	case <-time.After(6 * time.Second):
		err = errors.New("no answer to a beat within 6 s")
	}
	if err != nil {
		if isLost(sqlstate(err)) {
			w.formerEars, w.ear = append(w.formerEars, w.ear), nil
		}
		return err
	}
	for _, ear := range w.formerEars {
		ear.PgConn().Conn().Close() // a goroutine may still wait for its answer
	}
	w.formerEars = nil
	ctx, cancel := context.WithTimeout(w.over, next)
	defer cancel()
	for {
		note, err := w.ear.WaitForNotification(ctx)
		if ctx.Err() != nil {
			return nil
		} else if err != nil {
			w.formerEars, w.ear = append(w.formerEars, w.ear), nil
			return err
		} else if note.Payload == "cancel" || note.Payload == "migrate" {
			return nil
		}
		w.notified()
	}
}

func (w *worker) listen() (err error) {
	config := w.pool.Config().ConnConfig
	maps.Copy(config.RuntimeParams, map[string]string{
		"statement_timeout": "4000", "tcp_user_timeout": "14000", "tcp_keepalives_idle": "8",
		"tcp_keepalives_interval": "2", "tcp_keepalives_count": "3",
	})
	config.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		return conn.Exec(ctx, "LISTEN "+w.schema).Close()
	}
	w.ear, err = pgx.ConnectConfig(context.Background(), config)
	w.notified() // one may have been missed
	return err
}

func (w *worker) notified() {
	w.locked(func() { w.again = time.Time{} })
}

// beat names the jobs that are held, and hears which of them must stop. It returns when to beat again.
func (w *worker) beat(on database, lostAnswer bool) (next time.Duration, err error) {
	sql := beatSQL
	w.mu.Lock()
	me, sent := w.opened, time.Now()
	ids, runs := claimsOf(w.jobs)
	if !w.stopping {
		sql += ", pyworker.check_version(1)" // the one that this was tested with; else PW006
	}
	w.mu.Unlock()
	if me == nil {
		return time.Second / 5, nil
	}
	answer, err := ask[[]*row](context.Background(), w, on, sql, me.Worker, ids, runs, !lostAnswer, lostAnswer)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil || me != w.opened {
		return 0, err
	}
	for _, r := range answer {
		j := &r.Job
		if at := slices.IndexFunc(w.jobs, func(j *Job) bool { return j.claim == r.claim }); at >= 0 {
			j = w.jobs[at]
		}
		switch {
		case r.Kind == "dead":
			w.dead(errors.New("this worker was declared dead"))
		case r.Kind == "alive":
			w.beaten, next = sent, seconds(r.NextInS)
			if strings.Contains(r.Why, "maintain") {
				go ask[any](context.Background(), w, w.pool, "SELECT pyworker.maintain()")
			}
		case j.w == nil || j.report != "" || j.finished.Load(): // it has ended meanwhile
		case r.Why == "lost":
			w.lose(j)
		case j.begun:
			j.cancel(errors.New("the job was cancelled")) // the handler may ignore it
		default:
			j.end(nil, errReleased)
		}
	}
	w.begin()
	return next, nil
}

// locked changes the state, and does what follows from it.
func (w *worker) locked(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
	w.begin()
}

// silent: for so long no beat was answered that others may take the jobs. The wall clock goes on while the
// machine sleeps, and the monotonic one is never set back. The caller holds the lock, as of all below.
func (w *worker) silent() bool {
	since := max(time.Since(w.beaten), time.Now().Round(0).Sub(w.beaten.Round(0)))
	return w.opened != nil && since >= seconds(min(w.opened.StopAfterS, 15))
}

func (w *worker) fence() {
	if w.silent() {
		w.dead(errors.New("the database does not answer"))
	}
}

// begin begins the jobs that wait, in their order, and wakes the next turn.
func (w *worker) begin() {
	for _, j := range w.jobs {
		if j.begun || j.report != "" {
			continue
		} else if w.stopping {
			j.end(nil, errReleased)
			continue
		} else if w.running >= w.concurrency || w.alone || j.Crashes > 0 && w.running > 0 || w.silent() {
			break
		}
		w.running, w.alone, j.begun = w.running+1, j.Crashes > 0, true
		go w.perform(j)
	}
	if w.stopping && len(w.jobs) == 0 {
		w.end()
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// perform runs the handler of a job. The caller does not hold the lock.
func (w *worker) perform(j *Job) {
	result, err := j.call()
	w.locked(func() {
		w.running, w.alone = w.running-1, false
		if j.end(result, err); j.finished.Load() {
			w.forget(j)
		}
	})
}

func (w *worker) forget(ended ...*Job) {
	w.jobs = slices.DeleteFunc(slices.Clone(w.jobs), func(j *Job) bool { return slices.Contains(ended, j) })
}

// after changes the state later. The caller need not hold the lock.
func (w *worker) after(wait time.Duration, change func()) *time.Timer {
	return time.AfterFunc(wait, func() { w.locked(change) })
}

// abort tells a handler to stop. If it does not, only the end of the process stops it.
func (w *worker) abort(j *Job, why error) {
	j.cancel(why)
	w.after(grace, func() {
		if j.report != "" { // it has ended
			return
		}
		log.Printf("job %d, %s, does not stop: %v", j.ID, j.Task, why)
		if !slices.Contains(w.jobs, j) {
			os.Exit(exitDeaf) // before others run it
		}
		j.end(nil, why)
		w.stop(0, exitDeaf)
	})
}

// lose forgets a job that others have, or may have soon.
func (w *worker) lose(j *Job) {
	if w.forget(j); j.begun && j.report == "" {
		w.abort(j, errors.New("the claim is lost"))
	}
}

func (w *worker) dead(why error) {
	log.Print(why)
	w.opened = nil
	for _, j := range w.jobs {
		w.lose(j)
	}
}

// stop ends the worker. The handlers that run have so much time.
func (w *worker) stop(patience time.Duration, code int) {
	log.Printf("stopping: the handlers that run have %v", patience)
	w.stopping, w.code = true, cmp.Or(w.code, code)
	w.after(patience, func() {
		for _, j := range w.jobs {
			w.abort(j, errReleased)
		}
		time.AfterFunc(10*time.Second, func() { os.Exit(exitDeaf) })
	})
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
