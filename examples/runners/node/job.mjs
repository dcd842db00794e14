// One attempt at a job: what its handler gets, what it may throw, and what is reported.
import { setTimeout as sleep } from 'node:timers/promises'

const GIVE_UP = 5 // seconds that a handler has to end after its signal
const clean = text => text.toWellFormed().replaceAll('\0', '\ufffd') // jsonb cannot hold the rest
export const json = value => JSON.stringify(value, (_, v) => (typeof v === 'string' ? clean(v) : v)) ?? null
export const failure = error => ({ do: 'fail', error: clean(String(error?.stack ?? error)).slice(0, 32000) })

// Throw one to end a job in another way than by a failure.
export class Report extends Error {
  constructor(what, members = {}) {
    super(members.error ?? what)
    this.report = { do: what, ...members }
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
    Object.assign(this, row)
    this.abort = new AbortController()
    this.signal = this.abort.signal
    Object.defineProperty(this, 'runner', { value: runner })
  }

  // Runs the handler, and returns the report.
  async perform(handler) {
    let timer
    try {
      const start = () => this.runner.ask('start_job($1, $2)', this.id, this.run).catch(() => false)
      if (this.delivery === 'at_most_once' && !((await start()) && this.mayBegin)) return { do: 'release' }
      const late = () => this.runner.abort(this, `timed out after ${this.timeout_s} s`)
      if (this.timeout_s) timer = setTimeout(late, Math.min(this.timeout_s * 1000, 2 ** 31 - 1))
      return { do: 'done', result: json(await handler(this.payload, this)) }
    } catch (error) {
      if (this.handedBack) return { do: 'release' }
      if (this.signal.aborted) return failure(this.signal.reason)
      return error instanceof Report ? error.report : failure(error)
    } finally {
      clearTimeout(timer)
    }
  }

  // The answer of start_job may have come late: this process was paused, others have the job.
  get mayBegin() {
    return !this.signal.aborted && !this.runner.isSilent
  }

  // Tells the handler to stop; calls `deaf` if it has not stopped after so many seconds.
  stop(why, seconds = GIVE_UP, deaf) {
    if (this.stopped) return
    this.stopped = true
    this.abort.abort(new Error(why))
    setTimeout(() => {
      if (this.over) return
      this.report ??= this.handedBack ? { do: 'release' } : failure(why)
      deaf()
    }, seconds * 1000).unref()
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
      const finish = `select ${this.runner.schema}.finish_job($1, $2), pg_current_xact_id()::text as id`
      const { rows: [transaction] } = await client.query(finish, [this.id, this.run])
      this.finished = true
      await client.query('commit').catch(async error => {
        this.finished = await this.committed(transaction.id)
        if (!this.finished) throw error
      })
      broken = false
      return result
    } finally {
      client.release(broken) // true ends the connection, and so the transaction
    }
  }

  // The COMMIT was not answered.
  async committed(transaction) {
    for (;;) {
      const call = this.runner.ask('was_finished($1, $2, $3::xid8)', this.id, this.run, transaction)
      const answer = await call.catch(() => null)
      if (answer !== null) return answer
      await sleep(100)
    }
  }
}
