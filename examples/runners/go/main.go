// A worker of pyworker's queue, with the handlers of handlers.go: PGHOST=… go run .
package main

import (
	"cmp"
	"os"
	"strconv"
	"time"

	"example.org/pyworker/worker"
)

func number(name string, otherwise int) int {
	n, _ := strconv.Atoi(os.Getenv(name))
	return cmp.Or(n, otherwise)
}

func main() {
	w := worker.Worker{
		URL: os.Getenv("DATABASE_URL"), Handlers: handlers,
		Concurrency: number("PYWORKER_RUN_CONCURRENCY", 10), Prefetch: number("PREFETCH", 10),
		Patience: 25 * time.Second, Maintain: 30 * time.Second,
	}
	os.Exit(w.Run())
}
