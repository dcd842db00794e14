// The handlers of docs/conformance.md:
// go build -o runner ./conformance && python -m pyworker.conformance -- ./runner
package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"time"

	"example.org/pyworker/worker"
)

type payload struct {
	Name, Do, Error string
	MS              int
	DelayS          any `json:"delay_s"`
	Result          json.RawMessage
}

func note(name, word string) {
	file, err := os.OpenFile(os.Getenv("PYWORKER_CONFORMANCE_LOG"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	defer file.Close()
	file.WriteString(name + " " + word + "\n")
}

func conformance(ctx context.Context, job *worker.Job) (any, error) {
	var p payload
	if err := json.Unmarshal(job.Payload, &p); err != nil {
		return nil, err
	}
	note(p.Name, "begin")
	for over := time.Now().Add(time.Duration(p.MS) * time.Millisecond); time.Now().Before(over); {
		select {
		case <-time.After(50 * time.Millisecond):
			note(p.Name, "tick")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	note(p.Name, "end")
	switch p.Do {
	case "":
		return p.Result, nil
	case "fail":
		return nil, errors.New(p.Error)
	}
	return nil, &worker.Report{Do: p.Do, Text: p.Error, DelayS: p.DelayS}
}

func main() {
	os.Exit(worker.Run(map[string]worker.Handler{
		"conformance": conformance, "conformance_timeout": conformance,
	}))
}
