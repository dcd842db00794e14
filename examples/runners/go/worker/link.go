package worker

import (
	"context"
	"errors"
	"log"
	"math/rand/v2"
	"net"
	"regexp"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	tcpUserTimeout = 18 // Linux's TCP_USER_TIMEOUT, which package syscall leaves out
	forever        = 100 * 365 * 24 * time.Hour
)

// link is the connection of one loop, as a pool makes it again when it is lost. It has more than one
// only while an old one waits for a late answer.
type link struct {
	*pgxpool.Pool
	tries atomic.Int32
}

func (w *Worker) link(statementTimeout string, connected func(context.Context, *pgx.Conn) error) *link {
	config := w.config.Copy()
	for name, value := range map[string]string{
		"statement_timeout": statementTimeout, "lock_timeout": "0", "idle_session_timeout": "0",
		"idle_in_transaction_session_timeout": "0", "synchronous_commit": "off",
		"tcp_keepalives_idle": "8", "tcp_keepalives_interval": "2", "tcp_keepalives_count": "3",
		"tcp_user_timeout": "14000",
	} {
		config.ConnConfig.RuntimeParams[name] = value
	}
	config.MaxConnLifetime, config.MaxConnIdleTime = forever, forever // the worker's lock is a connection's
	config.MaxConns, config.AfterConnect = 3, connected
	pool, _ := pgxpool.NewWithConfig(context.Background(), config)
	return &link{Pool: pool}
}

// configured makes connections notice soon that the other end is gone.
func configured(url string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.ConnectTimeout = 5 * time.Second
	config.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3,
	}}
	if runtime.GOOS == "linux" {
		dialer.Control = func(network, _ string, conn syscall.RawConn) error {
			return conn.Control(func(fd uintptr) { // a Unix socket refuses it, and needs it not
				syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, 10000)
			})
		}
	}
	config.ConnConfig.DialFunc = dialer.DialContext
	return config, nil
}

// do makes one call. After an error it waits as long as the call is to wait for its repetition.
func (l *link) do(ctx context.Context, call func(context.Context, *pgx.Conn) error) error {
	within, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := l.AcquireFunc(within, func(conn *pgxpool.Conn) error {
		err := call(within, conn.Conn())
		if lost(err) {
			conn.Conn().Close(within)
		}
		return err
	})
	if err == nil || errors.Is(err, errDead) || ctx.Err() != nil {
		l.tries.Store(0)
		return err
	}
	log.Printf("the database: %v", err)
	select {
	case <-time.After(pause(err, int(l.tries.Add(1)))):
	case <-ctx.Done():
	}
	return err
}

func sqlstate(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// What an SQLSTATE asks for. None: there was no answer.
var (
	isLost    = regexp.MustCompile(`^(|08...|57P0[123]|25006)$`).MatchString
	isRefused = regexp.MustCompile(`^(22...|PW001)$`).MatchString // an argument, such as a report
	isBrief   = regexp.MustCompile(`^(40001|40P01|55P03|57014)$`).MatchString
	isMissing = regexp.MustCompile(`^(3F000|42...)$`).MatchString
)

// lost tells whether the connection is to be made again.
func lost(err error) bool { return err != nil && err != errDead && isLost(sqlstate(err)) }

func pause(err error, tries int) time.Duration {
	code := sqlstate(err)
	switch brief := isBrief(code) || isRefused(code); {
	case isLost(code):
		most := min(100<<min(tries-1, 6), 5000)
		return time.Duration(most/2+rand.IntN(most/2)) * time.Millisecond
	case brief && tries <= 3 || code == "PW006":
		return 0
	case brief:
		return time.Second
	case isMissing(code):
		return 5 * time.Second
	}
	return time.Duration(1000+rand.IntN(4000)) * time.Millisecond
}
