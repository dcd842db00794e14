package worker

import (
	"context"
	"errors"
	"log"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	workSQL = `SELECT json_agg(w)
		FROM pyworker.work($1, $2, $3, $4::text[]::jsonb[], $5::text::jsonb, $6, $7) w`
	beatSQL = "SELECT json_agg(b) FROM pyworker.beat($1, $2, $3, $4, lost_answer := $5) b"
	openSQL = "SELECT pyworker.open_worker($1, protocol := 1) FROM pyworker.close_worker($2)"

	schemaVersion = 1 // schema_version() of the database with which this was tested
)

var (
	isLost    = regexp.MustCompile(`^(|08...|57P0[123]|25006)$`).MatchString
	isRefused = regexp.MustCompile(`^(22...|PW001)$`).MatchString // an argument, such as a report
)

// row is a row of work or beat. Null is a zero value.
type row struct {
	Kind, Why string
	AgainInS  float64 `json:"again_in_s"`
	NextInS   float64 `json:"next_in_s"`
	Job
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

func sqlstate(err error) string {
	if e := (*pgconn.PgError)(nil); errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// keep calls step until the worker ends, on a connection that it makes again when it is lost.
func (w *worker) keep(timeout, first string, most time.Duration, step func(*pgx.Conn) error) (conn *pgx.Conn) {
	config := w.pool.Config().ConnConfig
	maps.Copy(config.RuntimeParams, map[string]string{
		"statement_timeout": timeout, "lock_timeout": "0", "idle_session_timeout": "0",
		"idle_in_transaction_session_timeout": "0", "synchronous_commit": "off",
		"tcp_keepalives_idle": "8", "tcp_keepalives_interval": "2", "tcp_keepalives_count": "3",
		"tcp_user_timeout": "14000",
	})
	config.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		defer w.notified("migrate") // notifications may have been missed
		return conn.Exec(ctx, first).Close()
	}
	var former []*pgx.Conn // the worker's lock is worth keeping until another connection has answered
	for failures := 0; w.over.Err() == nil; {
		err := error(nil)
		if conn == nil {
			conn, err = pgx.ConnectConfig(context.Background(), config)
		}
		if err == nil {
			err = step(conn)
		}
		if err == nil {
			for _, old := range former {
				old.PgConn().Conn().Close() // a goroutine may still wait for its answer
			}
			failures, former = 0, nil
			continue
		}
		log.Printf("the database: %v", err)
		w.mu.Lock()
		switch code := sqlstate(err); {
		case code == "PW004":
			w.dead(err)
		case code == "PW006":
			w.stop(patience, exitOld)
		case isLost(code):
			if conn != nil {
				former = append(former, conn)
			}
			conn, w.doubt, w.gap = nil, time.Now(), time.Second
		}
		w.mu.Unlock()
		wait := min(100*time.Millisecond<<min(failures, 6), most)
		time.Sleep(wait/2 + rand.N(wait/2))
		failures++
	}
	return conn
}

func (w *worker) notified(payload string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.again = (time.Time{}); payload == "migrate" {
		w.migrated.Store(true)
	}
	w.begin()
}

// turn makes the first call that is due.
func (w *worker) turn(conn *pgx.Conn) (err error) {
	w.mu.Lock()
	me, doubt := w.opened, w.gap > 0 && time.Now().After(w.doubt)
	if me != nil && doubt { // after 1, 2, 4 … 64 s once more: the lost call may still commit
		w.doubt, w.gap = time.Now().Add(w.gap), 2*w.gap%(256*time.Second)
	}
	w.mu.Unlock()
	switch {
	case me == nil:
		return w.open(conn)
	case doubt:
		return w.beat(conn, false, true)
	case w.migrated.Swap(false):
		_, err = ask[any](context.Background(), w, conn, "SELECT pyworker.check_version($1)", schemaVersion)
	case w.maintain.Swap(false):
		_, err = ask[any](context.Background(), w, conn, "SELECT pyworker.maintain()")
	default:
		return w.work(conn, me)
	}
	return err
}

func (w *worker) open(conn *pgx.Conn) error {
	sent, info := time.Now(), map[string]any{"name": "go", "pid": os.Getpid(), "task_identifiers": w.tasks}
	// The jobs of the former worker can be claimed at once.
	answer, err := ask[opened](context.Background(), w, conn, openSQL, info, w.former)
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.opened, w.former, w.beaten, w.again, w.gap = &answer, answer.Worker, sent, time.Time{}, 0
	}
	return err
}

// work reports and claims, or waits until there is a reason to.
func (w *worker) work(conn *pgx.Conn, me *opened) error {
	var sent []*Job
	ids, runs, results, reports := []int64{}, []int64{}, []*string{}, []string{}
	w.mu.Lock()
	for _, j := range w.jobs {
		switch {
		case !j.ended || w.oneByOne && len(sent) > 0:
			continue
		case j.report == "":
			ids, runs, results = append(ids, j.ID), append(runs, j.Run), append(results, j.result)
		default:
			reports = append(reports, j.report)
		}
		sent = append(sent, j)
	}
	room, wait := w.concurrency+prefetch-len(w.jobs)+len(sent), 2*time.Second
	if w.stopping {
		room = 0
	} else if room > 0 {
		wait = min(wait, time.Until(w.again))
	}
	if len(sent) == 0 && wait > 0 {
		w.oneByOne = false
		w.mu.Unlock()
		select {
		case <-w.wake:
		case <-time.After(wait):
		}
		return nil
	}
	w.again = time.Now().Add(time.Hour) // a notification from now on makes it zero
	w.mu.Unlock()
	answer, err := ask[[]*row](context.Background(), w, conn, workSQL,
		me.Worker, ids, runs, results, "["+strings.Join(reports, ",")+"]", max(room, 0), w.tasks)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		if w.again = (time.Time{}); isRefused(sqlstate(err)) && len(sent) == 1 {
			sent[0].end(nil, errors.New(err.Error())) // without the rest of the PgError, which may be at fault
		}
		w.oneByOne = isRefused(sqlstate(err))
	} else if me == w.opened { // else it was declared dead meanwhile: none of this is ours
		w.settle(sent, answer)
	}
	return err
}

// settle takes the answer to these reports. The caller holds the lock.
func (w *worker) settle(sent []*Job, answer []*row) {
	for _, j := range sent {
		j.gone = true
	}
	for _, r := range answer {
		switch j := &r.Job; {
		case r.Kind == "job":
			j.w = w
			j.ctx, j.cancel = context.WithCancelCause(context.Background())
			w.jobs = append(w.jobs, j)
		case r.Kind == "turn" && !w.again.IsZero():
			w.again = time.Now().Add(seconds(r.AgainInS))
		case r.Kind == "refused" && r.Why != "stale":
			log.Printf("the report of job %d is %s", r.ID, r.Why)
			faulty := sent[slices.IndexFunc(sent, func(j *Job) bool { return j.claim == r.claim })]
			faulty.end(nil, errors.New("its report is "+r.Why))
			faulty.gone = false
		}
	}
	w.begin()
}

// beats beats once, and does what notifications say until the next time.
func (w *worker) beats(conn *pgx.Conn) error {
	answer := make(chan error, 1)
	go func() { answer <- w.beat(conn, true, false) }()
	select {
	case err := <-answer:
		if err != nil {
			return err
		}
	case <-time.After(6 * time.Second):
		return errors.New("no answer to a beat within 6 s")
	}
	ctx, cancel := context.WithTimeout(w.over, time.Duration(w.beatIn.Load()))
	defer cancel()
	for {
		note, err := conn.WaitForNotification(ctx)
		if ctx.Err() != nil {
			return nil
		} else if err != nil || note.Payload == "cancel" {
			return err
		}
		w.notified(note.Payload)
	}
}

// beat tells which jobs are held, and hears which of them must stop.
func (w *worker) beat(conn *pgx.Conn, lock, lostAnswer bool) error {
	ids, runs := []int64{}, []int64{}
	w.mu.Lock()
	me, sent := w.opened, time.Now()
	for _, j := range w.jobs {
		ids, runs = append(ids, j.ID), append(runs, j.Run)
	}
	w.mu.Unlock()
	if me == nil {
		return nil
	}
	answer, err := ask[[]*row](context.Background(), w, conn, beatSQL, me.Worker, ids, runs, lock, lostAnswer)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil || me != w.opened {
		return err
	}
	for _, r := range answer {
		at := slices.IndexFunc(w.jobs, func(j *Job) bool { return j.claim == r.claim })
		switch {
		case r.Kind == "dead":
			w.dead(errors.New("this worker was declared dead"))
		case r.Kind == "alive":
			w.beaten = sent
			w.beatIn.Store(int64(seconds(r.NextInS)))
			w.maintain.Store(strings.Contains(r.Why, "maintain"))
		case at >= 0:
			w.jobs[at].told(r.Why)
		}
	}
	w.begin()
	return nil
}
