// A worker with these handlers: DATABASE_URL=… go run .
package main

import (
	"context"
	"log"
	"os"

	"example.org/pyworker/worker"
)

func main() {
	os.Exit(worker.Run(map[string]worker.Handler{
		"note": func(ctx context.Context, job *worker.Job) (any, error) {
			log.Printf("job %d: %s", job.ID, job.Payload)
			return nil, nil
		},
	}))
}
