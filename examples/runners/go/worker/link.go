package worker

import (
	"context"
	"errors"
	"log"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// link is a connection that is made again when it is lost.
type link struct {
	config *pgx.ConnConfig
	listen string
	conn   *pgx.Conn
	tries  int
}

func newLink(base *pgx.ConnConfig, statementTimeout, listen string) *link {
	config := base.Copy()
	for name, value := range map[string]string{
		"statement_timeout": statementTimeout, "lock_timeout": "0", "idle_session_timeout": "0",
		"idle_in_transaction_session_timeout": "0", "synchronous_commit": "off",
		"tcp_keepalives_idle": "8", "tcp_keepalives_interval": "2", "tcp_keepalives_count": "3",
		"tcp_user_timeout": "14000",
	} {
		config.RuntimeParams[name] = value
	}
	return &link{config: config, listen: listen}
}

// tune makes connections notice soon that the other end is gone.
func tune(config *pgx.ConnConfig) {
	config.ConnectTimeout = 5 * time.Second
	config.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	config.DialFunc = (&net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3},
		Control: func(network, _ string, conn syscall.RawConn) error {
			if network == "unix" || runtime.GOOS != "linux" {
				return nil
			}
			tcpUserTimeout := 18
			return conn.Control(func(fd uintptr) { syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, 10000) })
		},
	}).DialContext
}

// do makes one call. After an error it waits, as long as it is to, before the call is made again.
func (l *link) do(ctx context.Context, call func(context.Context, *pgx.Conn) error) (err error) {
	within, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if l.conn == nil {
		l.conn, err = pgx.ConnectConfig(within, l.config)
		if err == nil && l.listen != "" {
			_, err = l.conn.Exec(within, l.listen)
		}
	}
	if err == nil {
		err = call(within, l.conn)
	}
	if err == nil || errors.Is(err, errDead) || ctx.Err() != nil {
		l.tries = 0
		return err
	}
	l.tries++
	log.Printf("the database: %v", err)
	if lost(err) {
		l.close()
	}
	select {
	case <-time.After(pause(err, l.tries)):
	case <-ctx.Done():
	}
	return err
}

func (l *link) close() {
	if l.conn != nil {
		now, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		l.conn.Close(now)
		l.conn = nil
	}
}

func sqlstate(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// lost tells whether the connection is to be made again.
func lost(err error) bool {
	code := sqlstate(err)
	return code == "" || strings.HasPrefix(code, "08") || code >= "57P01" && code <= "57P03" || code == "25006"
}

// refused tells whether a report cannot be stored.
func refused(code string) bool { return strings.HasPrefix(code, "22") || code == "PW001" }

func pause(err error, tries int) time.Duration {
	code := sqlstate(err)
	again := !lost(err) && (code == "40001" || code == "40P01" || code == "55P03" || code == "57014" || refused(code))
	switch {
	case lost(err):
		return time.Duration(min(100<<min(tries-1, 6), 5000)*(500+rand.IntN(500))/1000) * time.Millisecond
	case again && tries <= 3 || code == "PW006":
		return 0
	case again:
		return time.Second
	case code == "3F000" || strings.HasPrefix(code, "42"):
		return 5 * time.Second
	}
	return time.Duration(1+4*rand.Float64()) * time.Second
}
