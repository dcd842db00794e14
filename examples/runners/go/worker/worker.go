// Package worker runs jobs of pyworker's queue, by the rules of docs/protocol.md. Four things happen side by
// side: the loops of turn and beats, the handlers, and a fence that stops the handlers when the database is
// silent. One lock guards what they share.
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
	prefetch = 10                // jobs that wait here, besides those that run
	hold     = time.Second       // from the request of a claim until its jobs begin or go back
	patience = 25 * time.Second  // for handlers that run when the worker is told to end
	grace    = 2 * time.Second   // for a handler that must stop: with stop_after_s, less than ttl_s
	doubt    = 128 * time.Second // for so long a call whose answer was lost may still commit
	exitOld  = 56                // this database and this runner do not fit
	exitDeaf = 70                // a handler did not stop, or the database does not answer

	openSQL = "SELECT pyworker.open_worker($2, protocol := 1) FROM pyworker.close_worker($1)"
	workSQL = `SELECT json_agg(w) FROM set_config('lock_timeout', $7, true) t,
		pyworker.read_reports($2, $3, $4) r,
		pyworker.work($1, r.done_ids, r.done_runs, r.done_results, r.reports, $5, $6) w`
	beatSQL = "SELECT json_agg(b) FROM pyworker.beat($1, $2, $3, $4, lost_answer := $5) b"
	hearSQL = "SET statement_timeout = '4s'; LISTEN "
	keepSQL = `SET tcp_user_timeout = 14000; SET tcp_keepalives_idle = 8;
		SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3`
)

// row is a row of work or beat. Null is a zero value.
type row struct {
	Kind, Why string
	AgainInS  float64 `json:"again_in_s"`
	NextInS   float64 `json:"next_in_s"`
	Job
}

type worker struct {
	handlers map[string]Handler
	once     []string // of the tasks: whose jobs never run twice
	tasks    []string
	schema   string
	places   int           // how many handlers may run at once
	pool     *pgxpool.Pool // for work, and for what handlers call
	ears     []*pgx.Conn   // for beat: all but the last have not answered
	ear      *pgx.Conn     // the last, if it has answered
	wake     chan struct{} // there may be something to claim or to report
	running  sync.WaitGroup

	mu       sync.Mutex // of all below
	id       int64      // 0: the next turn opens a worker
	former   int64      // others have its jobs, or may have them soon
	life     context.Context
	end      context.CancelCauseFunc
	jobs     []*Job    // claimed and not reported, in the order of their claims
	free     int       // places
	alive    time.Time // when the last beat that was answered was sent
	patience time.Duration
	again    time.Time     // when to claim again
	woken    bool          // by a notification, since the last claim
	vain     time.Duration // a notification's claim is put off by less: the last ones brought nothing
	doubts   time.Time     // until then jobs may come to light that an answer had, which was lost
	apart    time.Time     // until then each turn reports one job: another session has locked some
	calmTill time.Time     // until then no job waits here: some have waited too long
	calm     time.Duration // for how long, then
	trip     time.Duration // how long the last claim took
	alone    time.Duration // how much longer a job may wait that must run alone: twice as long each time
	shyTill  time.Time     // until then another process may take it
	stopping bool
	code     int
}

// Run works until SIGTERM or SIGINT, and returns the exit code. A second signal stops what runs. The jobs of
// the tasks in atMostOnce never run twice, whatever delivery they were added with.
func Run(handlers map[string]Handler, atMostOnce ...string) int {
	places, wrong := strconv.Atoi(cmp.Or(os.Getenv("PYWORKER_RUN_CONCURRENCY"), "10"))
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err = cmp.Or(err, wrong); err != nil {
		log.Fatal(err)
	}
	alive := net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3}
	config.ConnConfig.DialFunc = (&net.Dialer{KeepAliveConfig: alive}).DialContext
	config.ConnConfig.ConnectTimeout = 5 * time.Second
	config.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	config.ConnConfig.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		return conn.Exec(ctx, keepSQL).Close()
	}
	config.MaxConns = int32(2*places + 2) // each handler: a transaction, and another call during it
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		log.Fatal(err)
	}
	schema := pgx.Identifier{cmp.Or(os.Getenv("PYWORKER_SCHEMA"), "pyworker")}.Sanitize()
	w := &worker{
		handlers: handlers, once: atMostOnce, tasks: slices.Sorted(maps.Keys(handlers)), schema: schema,
		places: places, pool: pool, wake: make(chan struct{}, 1),
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	for !w.stopping {
		w.live(signals)
	}
	ask[any](context.Background(), w, w.pool, "SELECT pyworker.close_worker($1)", w.id)
	return w.code
}

// live works until others have its jobs, or there is nothing left to do.
func (w *worker) live(signals chan os.Signal) {
	w.locked(func() {
		w.life, w.end = context.WithCancelCause(context.Background())
		w.former, w.id, w.jobs, w.free, w.again, w.doubts = w.id, 0, nil, w.places, time.Time{}, time.Time{}
	})
	var loops sync.WaitGroup
	loops.Go(func() { w.repeat(500*time.Millisecond, w.beats) })
	loops.Go(func() { w.repeat(5*time.Second, w.turn) })
	for w.life.Err() == nil {
		select {
		case <-signals:
			w.locked(func() { w.stop(0) })
		case <-time.After(200 * time.Millisecond):
			w.locked(func() {})
		case <-w.life.Done():
		}
	}
	loops.Wait()
	if cause := context.Cause(w.life); cause != context.Canceled {
		log.Print(cause)
		w.running.Wait()
		w.ear = nil
	}
}

// repeat repeats a step. After an error it waits, each time twice as long.
func (w *worker) repeat(most time.Duration, step func() error) {
	for failures := 0; w.life.Err() == nil; {
		err := step()
		if err == nil || w.life.Err() != nil {
			failures = 0
			continue
		}
		log.Printf("the database: %v", err)
		w.locked(func() {
			w.again, w.doubts = time.Time{}, time.Now().Add(doubt)
			var refused *pgconn.PgError
			if errors.As(err, &refused) && refused.Code == "PW004" {
				w.end(err)
			} else if refused != nil && refused.Code == "PW006" {
				w.stop(exitOld)
			}
		})
		wait := min(100*time.Millisecond<<min(failures, 6), most)
		select {
		case <-time.After(wait/2 + rand.N(wait/2)):
		case <-w.life.Done():
		}
		failures++
	}
}

type database interface {
	QueryRow(ctx context.Context, sql string, arguments ...any) pgx.Row
}

// ask runs one statement, which answers with one value.
func ask[T any](ctx context.Context, w *worker, on database, sql string, values ...any) (T, error) {
	var answer T
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := on.QueryRow(ctx, strings.ReplaceAll(sql, "pyworker.", w.schema+"."), values...).Scan(&answer)
	return answer, err
}

func claimsOf(jobs []*Job) (ids, runs []int64) {
	ids, runs = []int64{}, []int64{}
	for _, j := range jobs {
		ids, runs = append(ids, j.ID), append(runs, j.Run)
	}
	return ids, runs
}

func (w *worker) open() error {
	sent, info := time.Now(), map[string]any{"name": "go", "pid": os.Getpid(), "task_identifiers": w.tasks}
	answer, err := ask[struct {
		Worker     int64
		StopAfterS float64 `json:"stop_after_s"`
	}](w.life, w, w.pool, openSQL, w.former, info)
	w.locked(func() { w.id, w.alive, w.patience = answer.Worker, sent, seconds(min(answer.StopAfterS, 15)) })
	return err
}

// turn reports and claims, or waits until there is a reason to.
func (w *worker) turn() error {
	if w.id == 0 {
		return w.open()
	} else if time.Now().Before(w.doubts) {
		if _, err := w.beat(w.life, w.pool, true); err != nil {
			return err
		}
	}
	var ended []*Job
	reports := []string{}
	w.mu.Lock()
	now, patience := time.Now(), "200ms"
	for _, j := range w.jobs {
		if j.report != "" && now.After(j.aside) && (len(ended) == 0 || now.After(w.apart)) {
			ended, reports = append(ended, j), append(reports, j.report)
		}
	}
	room, wait := w.room(len(ended)), 2*time.Second
	if room > 0 {
		wait = time.Until(w.again)
	} else if shy := time.Until(w.shyTill); shy > 0 {
		wait = shy
	}
	if len(ended) == 0 && wait > 0 {
		w.mu.Unlock()
		select {
		case <-w.wake:
		case <-time.After(wait):
		}
		return nil
	}
	woken := w.woken
	w.woken = false
	w.again = time.Now().Add(time.Hour) // a notification from now on makes it earlier
	w.mu.Unlock()
	if len(ended) > 1 {
		patience = "1s"
	}
	ids, runs := claimsOf(ended)
	sent := time.Now()
	rows, err := ask[[]*row](w.life, w, w.pool, workSQL, w.id, ids, runs, reports, room, w.tasks, patience)
	if refused := new(pgconn.PgError); errors.As(err, &refused) && refused.Code == "55P03" && len(ended) > 0 {
		w.locked(func() { w.setAside(ended) })
		return nil
	} else if err != nil {
		return err
	}
	w.locked(func() {
		until, got := w.until(sent, room), false
		for _, r := range rows {
			switch {
			case r.Kind == "job":
				if r.w, r.until = w, until; r.Crashes > 0 {
					r.until = until.Add(w.alone)
				}
				w.jobs, got = append(w.jobs, &r.Job), true
			case r.Kind == "turn":
				w.claimIn(seconds(r.AgainInS))
			case r.Kind == "refused":
				log.Printf("the report of job %d is refused: %s", r.ID, r.Why)
			}
		}
		if got {
			w.vain = 0
		} else if woken {
			w.vain = min(max(2*w.vain, 5*time.Millisecond), 100*time.Millisecond)
		}
		w.forget(ended...)
	})
	return nil
}

// claimIn: claim again in so long, or earlier.
func (w *worker) claimIn(wait time.Duration) {
	if at := time.Now().Add(wait); at.Before(w.again) {
		w.again = at
	}
}

// room is how many jobs to claim, when so many are reported: none while a job runs alone, or waits for that.
func (w *worker) room(ended int) int {
	alone := slices.ContainsFunc(w.jobs, func(j *Job) bool { return j.Crashes > 0 && j.report == "" })
	if w.stopping || alone || w.free < w.places && time.Now().Before(w.shyTill) {
		return 0
	} else if time.Now().Before(w.calmTill) {
		return max(w.places-len(w.jobs)+ended, 0)
	}
	return max(w.places+prefetch-len(w.jobs)+ended, 0)
}

// until is when claimed jobs begin or go back. If the answer takes longer, the process was paused, or the
// network is slow: then the next one takes as long, and the time counts from the answer.
func (w *worker) until(sent time.Time, room int) time.Time {
	trip := since(sent)
	slow := trip > hold && trip <= 2*w.trip
	if room > 0 {
		w.trip = trip
	}
	if slow {
		sent = time.Now()
	}
	return sent.Add(hold)
}

// goesBack: this job has waited too long. Then nothing is claimed ahead for a while: a job that goes back has
// started, as a rate counts.
func (w *worker) goesBack(j *Job) {
	j.end(nil, errUnbegun)
	now := time.Now()
	if !now.Before(w.calmTill) {
		if now.Before(w.calmTill.Add(w.calm)) {
			w.calm = min(2*w.calm, time.Minute)
		} else {
			w.calm = 2 * time.Second
		}
		w.calmTill = now.Add(w.calm)
	}
	if j.Crashes > 0 && w.free < w.places {
		w.alone, w.shyTill = min(2*w.alone+hold, time.Minute), now.Add(time.Second/4)
	}
}

// setAside: another session has locked some of these jobs. For some seconds the others are reported, one by
// one.
func (w *worker) setAside(ended []*Job) {
	if until := time.Now().Add(5 * time.Second); len(ended) > 1 {
		w.apart = until
	} else {
		ended[0].aside = until
	}
	w.again = time.Time{}
}

// beats beats, and hears notifications until the next time. A connection that does not answer is not asked
// again; it is kept until another one has answered, as it may have the lock.
func (w *worker) beats() (err error) {
	ear := w.ear
	if w.ear = nil; ear == nil {
		if ear, err = w.listen(); err != nil {
			return err
		}
	}
	var next time.Duration
	answered := make(chan error, 1)
	go func() {
		in, err := w.beat(context.Background(), ear, false)
		next = in
		answered <- err
	}()
	select {
	case err = <-answered:
	case <-time.After(6 * time.Second):
		err = errors.New("no answer to a beat within 6 s")
	case <-w.life.Done():
	}
	if err != nil || w.life.Err() != nil {
		return err
	}
	for len(w.ears) > 1 {
		w.ears[0].PgConn().Conn().Close() // a goroutine may still wait for its answer
		w.ears = w.ears[1:]
	}
	ctx, cancel := context.WithTimeout(w.life, next)
	defer cancel()
	for {
		note, err := ear.WaitForNotification(ctx)
		if err != nil && ctx.Err() == nil {
			return err
		}
		w.ear = ear
		if err != nil || note.Payload == "cancel" || note.Payload == "migrate" {
			return nil
		}
		w.notified()
	}
}

// listen connects for beat. This connection hears notifications, and its session has the worker's lock.
func (w *worker) listen() (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(w.life, 6*time.Second)
	defer cancel()
	ear, err := pgx.ConnectConfig(ctx, w.pool.Config().ConnConfig)
	if err == nil {
		w.ears = append(w.ears, ear)
		_, err = ear.Exec(ctx, hearSQL+w.schema)
		w.notified() // one may have been missed
	}
	return ear, err
}

func (w *worker) notified() {
	w.locked(func() {
		w.woken = true
		w.claimIn(rand.N(w.vain + 1))
	})
}

// beat names the jobs that are held, and hears which of them must stop. It returns when to beat again.
func (w *worker) beat(ctx context.Context, on database, lostAnswer bool) (next time.Duration, err error) {
	w.mu.Lock()
	id, sent, sql := w.id, time.Now(), beatSQL
	ids, runs := claimsOf(w.jobs)
	if !w.stopping {
		sql += ", pyworker.check_version(1)" // the one that this was tested with; else PW006
	}
	w.mu.Unlock()
	if id == 0 {
		return time.Second / 5, nil
	}
	rows, err := ask[[]*row](ctx, w, on, sql, id, ids, runs, !lostAnswer, lostAnswer)
	if err != nil {
		return 0, err
	}
	w.locked(func() {
		for _, r := range rows {
			j := &r.Job
			if at := slices.IndexFunc(w.jobs, func(j *Job) bool { return j.ID == r.ID && j.Run == r.Run }); at >= 0 {
				j = w.jobs[at]
			}
			switch {
			case id != w.id: // the answer is late, and about a former worker
			case r.Kind == "dead":
				w.end(errors.New("this worker was declared dead"))
			case r.Kind == "alive":
				w.alive, next = sent, seconds(r.NextInS)
				if strings.Contains(r.Why, "maintain") {
					go ask[any](context.Background(), w, w.pool, "SELECT pyworker.maintain()")
				}
			case j.w == nil || j.report != "" || j.finished.Load(): // it has ended meanwhile
			case r.Why == "lost":
				if w.forget(j); j.stop != nil {
					j.stop(errors.New("the claim is lost"))
				}
			case j.stop != nil:
				j.tell(errors.New("the job was cancelled")) // the handler may ignore it
			default:
				j.end(nil, errUnbegun)
			}
		}
	})
	return next, nil
}

// locked changes the state, and does what follows from it: all handlers must stop, if for so long no beat was
// answered that others may take the jobs. Else jobs begin that wait, in their order.
func (w *worker) locked(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
	if w.id != 0 && since(w.alive) >= w.patience {
		w.end(errors.New("the database does not answer"))
	}
	full := w.life.Err() != nil
	for _, j := range w.jobs {
		places := 1
		if j.Crashes > 0 { // it may end this process: it runs alone
			places = w.places
		}
		if j.stop != nil || j.report != "" {
			continue
		}
		full = full || places > w.free
		if w.stopping || since(j.until) > 0 {
			w.goesBack(j)
		} else if !full {
			w.begin(j, places)
		}
	}
	if w.stopping && len(w.jobs) == 0 {
		w.end(nil)
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// begin begins a job. The caller holds the lock.
func (w *worker) begin(j *Job, places int) {
	must, stop := context.WithCancelCause(w.life)
	j.stop = stop
	j.ctx, j.tell = context.WithCancelCause(must)
	if w.free -= places; j.Crashes > 0 {
		w.alone = 0
	}
	w.running.Go(func() {
		deaf := func() { w.locked(func() { w.deaf(j) }) }
		defer context.AfterFunc(must, func() { time.AfterFunc(grace, deaf) })()
		result, err := j.call()
		w.locked(func() {
			w.free += places
			if j.end(result, err); j.finished.Load() {
				w.forget(j)
			}
		})
	})
}

// deaf: a handler that had to stop has not, so only the end of the process stops it.
func (w *worker) deaf(j *Job) {
	if j.report != "" {
		return
	}
	log.Printf("job %d, %s, does not stop: %v", j.ID, j.Task, context.Cause(j.ctx))
	if w.life.Err() != nil || !slices.Contains(w.jobs, j) {
		os.Exit(exitDeaf) // before others run it
	}
	j.end(nil, context.Cause(j.ctx))
	w.stop(exitDeaf)
}

func (w *worker) forget(ended ...*Job) {
	w.jobs = slices.DeleteFunc(slices.Clone(w.jobs), func(j *Job) bool { return slices.Contains(ended, j) })
}

// stop ends the worker. The handlers that run have some time, but not if it is told again.
func (w *worker) stop(code int) {
	wait := patience
	if w.stopping || code == exitDeaf {
		wait = 0
	}
	log.Printf("stopping: the handlers that run have %v", wait)
	w.stopping, w.code = true, cmp.Or(w.code, code)
	time.AfterFunc(wait, func() {
		w.locked(func() {
			for _, j := range w.jobs {
				if j.stop != nil {
					j.stop(errReleased)
				}
			}
		})
		time.AfterFunc(10*time.Second, func() { os.Exit(exitDeaf) })
	})
}

// since goes on while the machine sleeps, as the wall clock does, and is never set back.
func since(t time.Time) time.Duration {
	return max(time.Since(t), time.Now().Round(0).Sub(t.Round(0)))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
