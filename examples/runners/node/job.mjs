// A claimed job: its row, a signal that tells its handler to stop, and effects that happen once.
import { inspect } from 'node:util'

// Throw one to end a job in another way: new Report('snooze', { delay_s: 60 }). See docs/protocol.md.
export class Report extends Error {
  constructor(what, members = {}) {
    super(members.error ?? what)
    this.text = JSON.stringify({ do: what, ...members })
  }
}

export class Job {
  asideUntil = 0 // until then its report waits: another session has locked the job

  // until: when it must have begun
  constructor(worker, row, until) {
    const controller = new AbortController()
    Object.assign(this, row, { until, signal: controller.signal, tell: why => controller.abort(why) })
    Object.defineProperty(this, 'worker', { value: worker })
  }

  // Notes what to report: a Report, or what the handler has thrown. Only the first end counts.
  end(why) {
    const { text } = why instanceof Report ? why
      : new Report('fail', { error: String(why?.stack ?? inspect(why)).slice(0, 32000) })
    this.report ??= text
  }

  // Calls a function about this run, in a transaction of its own.
  async ask(call, ...values) {
    const sql = `select pyworker.${call} as answer`
    return (await this.worker.ask(sql, [this.id, this.run, ...values]))[0].answer
  }

  // True once for this name, over all runs of the job.
  once(name) {
    return this.ask('once($1, $2, $3)', name)
  }

  // A transaction that also completes the job: all of it commits, or nothing. If its COMMIT is not answered,
  // it throws. Then the report waits until the database knows: if it has committed, the report is stale.
  async transaction(work) {
    const client = await this.worker.pool.connect()
    try {
      await client.query('begin')
      const result = await work(client)
      await this.worker.ask('select pyworker.finish_job($1, $2)', [this.id, this.run], client)
      this.finished = true
      await client.query('commit')
      client.release()
      return result
    } catch (error) {
      this.finished = false
      client.release(true) // ends the connection, and so the transaction
      throw error
    }
  }
}
