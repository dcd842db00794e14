// One attempt at a job: what its handler gets, what it may throw, and what is reported.
import { setTimeout as sleep } from 'node:timers/promises'
import { inspect } from 'node:util'

// Throw one to end a job in another way than by a failure.
export class Report extends Error {
  constructor(what, members = {}) {
    super(members.error ?? what)
    this.report = { do: what, ...members }
    JSON.stringify(members) // what is no JSON fails here, in the handler
  }
}
export const snooze = delay_s => new Report('snooze', { delay_s })
export const discard = error => new Report('discard', { error })
export const cancel = error => new Report('cancel', { error })
export const notStarted = error => new Report('not_started', { error })
export const fail = (error, members) => new Report('fail', { error, ...members })

// The row of a claimed job, a signal to stop, and effects that happen once.
export class Job {
  constructor(runner, row) {
    const controller = new AbortController()
    Object.assign(this, row, { signal: controller.signal, abort: why => controller.abort(why) })
    Object.defineProperty(this, 'runner', { value: runner })
  }

  // Runs the handler, and notes what to report.
  async perform(handler) {
    try {
      if (this.delivery === 'at_most_once' && !(await this.start())) throw new Report('release')
      const late = () => this.runner.abort(this, new Error(`timed out after ${this.timeout_s} s`))
      if (this.timeout_s) this.timer = setTimeout(late, Math.min(this.timeout_s * 1000, 2 ** 31 - 1))
      this.end({ do: 'done', result: await handler(this.payload, this) })
    } catch (error) {
      this.fail(error)
    }
    clearTimeout(this.timer)
  }

  // False also if the answer came late: this process was paused, and others have the job.
  async start() {
    const started = await this.runner.ask('start_job($1, $2)', this.id, this.run).catch(() => false)
    return started && !this.signal.aborted && !this.runner.isSilent
  }

  // Only the first end is reported.
  end(report) {
    this.report ??= JSON.stringify(report)
  }

  // The handler has thrown this, or does not stop.
  fail(error) {
    const why = this.signal.aborted ? this.signal.reason : error
    const failure = { do: 'fail', error: String(why?.stack ?? inspect(why)).slice(0, 32000) }
    this.end(why instanceof Report ? why.report : failure)
  }

  // True once for this name, over all runs of the job.
  once(name) {
    return this.runner.ask('once($1, $2, $3)', this.id, this.run, name)
  }

  // A transaction that also completes the job: all of it commits, or nothing.
  async transaction(work) {
    const client = await this.runner.pool.connect()
    let broken = true
    try {
      await client.query('begin')
      const result = await work(client)
      const finish = `select ${this.runner.schema}.finish_job($1, $2), pg_current_xact_id()::text as xid`
      const { rows: [{ xid }] } = await client.query(finish, [this.id, this.run])
      this.finished = true
      await client.query('commit').catch(error => this.wasCommitted(xid, error))
      broken = false
      return result
    } finally {
      client.release(broken) // true ends the connection, and so the transaction
    }
  }

  // The COMMIT was not answered: asks, until the database knows. Null: it may still commit.
  async wasCommitted(xid, error) {
    const ask = () => this.runner.ask('was_finished($1, $2, $3::xid8)', this.id, this.run, xid)
    let answer
    while ((answer = await ask().catch(() => null)) === null) await sleep(100)
    this.finished = answer
    if (!answer) throw error
  }
}
