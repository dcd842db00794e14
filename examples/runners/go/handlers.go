package main

import (
	"context"
	"log"

	"example.org/pyworker/worker"
)

var handlers = map[string]worker.Handler{
	"note": func(ctx context.Context, job *worker.Job) (any, error) {
		log.Printf("job %d: %s", job.ID, job.Payload)
		return nil, nil
	},
}
