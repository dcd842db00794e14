// A runner by docs/protocol.md: new Runner({task: async (payload, job) => result}).run()
import { uptime as now } from 'node:os' // goes on while the machine sleeps
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { Job, failure, json } from './job.mjs'

const SCHEMA_VERSION = 1 // schema_version() of the database that this was tested with
const PREFETCH = 10 // jobs that wait here, besides those that run
const SETTINGS = { lock_timeout: 0, idle_in_transaction_session_timeout: 0, synchronous_commit: 'off',
  tcp_keepalives_idle: 8, tcp_keepalives_interval: 2, tcp_keepalives_count: 3, tcp_user_timeout: 14000 }
const log = (...words) => console.error(new Date().toISOString(), ...words)
const keyOf = job => `${job.id}/${job.run}`
const idsOf = jobs => [jobs.map(job => job.id), jobs.map(job => job.run)]

export class Runner {
  constructor(handlers, { schema = 'pyworker', concurrency = 10, shutdown_s = 25 } = {}) {
    Object.assign(this, { handlers, concurrency, shutdown_s, schema: pg.escapeIdentifier(schema) })
    this.connection = { connectionString: process.env.DATABASE_URL, connectionTimeoutMillis: 5000,
      keepAlive: true, keepAliveInitialDelayMillis: 5000 }
    this.pool = new pg.Pool({ ...this.connection, max: concurrency * 2 }) // for handlers
    this.pool.on('error', () => {})
    this.pool.on('connect', client => client.on('error', () => {})) // one that is lost fails its query
    this.held = new Map() // all jobs that this worker has claimed and not reported
    this.running = this.workAt = 0 // handlers, also of jobs that are lost; when to claim again
    this.lostAt = Infinity // when to ask again which jobs a lost answer had
    this.wakeWork = this.wakeBeat = () => {}
  }

  // All calls: each is a transaction of its own.
  async rows(on, call, values) {
    return (await on.query(`select * from ${this.schema}.${call}`, values)).rows
  }

  async ask(call, ...values) {
    return (await this.rows(this.pool, `${call} as answer`, values))[0].answer
  }

  get isSilent() { // no answer to a beat for so long that others may have our jobs
    return this.opened && now() > this.aliveAt + this.opened.stop_after_s
  }

  async run() { // until stop() is called; returns the exit code
    const fence = setInterval(() => {
      if (this.isSilent) this.dead('the database does not answer', 1)
    }, 200)
    const over = () => this.stopping && !this.held.size
    const beats = this.keep('4s', 6, 500, () => this.closed, client => this.beats(client))
    const working = await this.keep('0', 60, 5000, over, client => this.turn(client))
    clearInterval(fence)
    this.closed = true
    this.wakeBeat()
    const beating = await beats // this connection has the lock
    if (this.last && beating) await this.rows(beating, 'close_worker($1)', [this.last.worker]).catch(() => {})
    await Promise.all([working?.end(), beating?.end(), this.pool.end()])
    return this.exitCode ?? 0
  }

  // -- calls

  // Without an answer for so many seconds, a connection counts as lost.
  async connect(statement_timeout, query_timeout) {
    const client = new pg.Client({ ...this.connection, query_timeout: query_timeout * 1000 })
    client.on('error', () => {})
    client.on('notification', ({ payload }) => this.notified(payload))
    await client.connect()
    for (const pair of Object.entries({ ...SETTINGS, statement_timeout })) {
      await client.query('select set_config($1, $2, false)', pair)
    }
    return client
  }

  // Repeats step until over(), on a connection that it makes again when it is lost, after `most` ms at most.
  async keep(statement_timeout, query_timeout, most, over, step) {
    const former = [] // the worker's lock is worth keeping until another connection has answered
    let client
    for (let failures = 0; !over(); ) {
      try {
        client ??= await this.connect(statement_timeout, query_timeout)
        await step(client)
        for (const old of former.splice(0)) old.connection.stream.destroy()
        failures = 0
      } catch (error) {
        const code = error instanceof pg.DatabaseError ? error.code : 'none'
        log(code, error.message)
        this.workAt = 0
        if (code === 'PW004') this.dead(error.message)
        else if (code === 'PW006') this.stop(this.shutdown_s, 56)
        else if (/^(none|08|57P|25006)/.test(code)) {
          if (client) former.push(client)
          client = undefined
          this.lostAt = 0
          this.lostIn = 1
          this.migrated = true // its notification may have been missed
        }
        await sleep(Math.min(100 * 2 ** failures++, most) * (0.5 + Math.random() / 2))
      }
    }
    return client
  }

  notified(payload) {
    if (payload === 'cancel') return this.wakeBeat()
    if (payload === 'migrate') this.migrated = true
    this.workAt = 0
    this.wakeWork()
  }

  // The first call that is due.
  async turn(client) {
    if (!this.opened) return this.open(client)
    if (now() >= this.lostAt) { // after 1, 2, 4 … 64 s once more: the lost call may still commit
      await this.beat(client, false, true)
      this.lostAt = this.lostIn > 64 ? Infinity : now() + this.lostIn
      this.lostIn *= 2
    } else if (this.migrated) {
      this.migrated = false
      await this.rows(client, 'check_version($1)', [SCHEMA_VERSION])
    } else if (this.maintain) {
      this.maintain = false
      await this.rows(client, 'maintain()')
    } else await this.work(client)
  }

  async open(client) {
    const info = { name: 'node', pid: process.pid, task_identifiers: Object.keys(this.handlers) }
    this.aliveAt = now()
    if (this.last) await this.rows(client, 'close_worker($1)', [this.last.worker])
    const [{ answer }] = await this.rows(client, 'open_worker($1, 1) as answer', [info])
    this.opened = this.last = answer
    this.lostAt = Infinity
    this.wakeBeat()
  }

  // Reports and claims, or waits until there is a reason to.
  async work(client) {
    const ended = [...this.held.values()].filter(job => job.report).slice(0, this.oneByOne ? 1 : Infinity)
    const room = this.stopping ? 0 : Math.max(this.concurrency + PREFETCH - this.held.size + ended.length, 0)
    if (!ended.length) {
      this.oneByOne = false
      if (!room || now() < this.workAt) return this.pause('wakeWork', room ? this.workAt - now() : 2.5)
    }
    const me = this.opened, done = ended.filter(job => job.report.do === 'done')
    const others = ended.filter(job => job.report.do !== 'done')
    const reports = json(others.map(({ id, run, report }) => ({ ...report, id, run })))
    const values = [me.worker, ...idsOf(done), done.map(job => job.report.result), reports, room]
    this.workAt = Infinity // a notification from now on sets it to 0
    const call = 'work($1, $2::bigint[], $3::bigint[], $4::jsonb[], $5::jsonb, $6, $7)'
    try {
      this.answered(me, ended, await this.rows(client, call, [...values, Object.keys(this.handlers)]))
    } catch (error) { // a report that the database refuses becomes a failure
      this.oneByOne = error instanceof pg.DatabaseError && /^(22|PW001)/.test(error.code)
      if (this.oneByOne && ended.length === 1) ended[0].report = failure(error)
      throw error
    }
  }

  answered(me, ended, rows) {
    if (me !== this.opened) return // declared dead meanwhile: none of this is ours
    for (const job of ended) this.held.delete(keyOf(job))
    for (const row of rows) {
      if (row.kind === 'job') this.held.set(keyOf(row), new Job(this, row))
      else if (row.kind === 'turn') this.workAt = this.workAt && now() + row.again_in_s
      else this.refused(row, ended.find(job => keyOf(job) === keyOf(row)))
    }
    this.begin()
  }

  refused({ id, run, why }, job) {
    if (why === 'stale') return
    log('refused', id, run, why)
    job.report = { do: 'fail', error: why } // malformed: the job still runs
    this.held.set(keyOf(job), job)
  }

  // -- handlers

  begin() {
    for (const job of this.held.values()) {
      if (job.begun || job.report) continue
      if (this.stopping) { job.report = { do: 'release' }; continue }
      if (this.running >= this.concurrency || this.alone || this.isSilent) return
      if (job.crashes > 0 && this.running) return // it may end this process: it runs alone
      this.alone = job.crashes > 0
      this.running++
      job.begun = true
      job.perform(this.handlers[job.task_identifier]).then(report => this.end(job, report))
    }
  }

  end(job, report) {
    this.running--
    this.alone = false
    job.over = true
    if (job.finished || job.lost) this.forget(job)
    else job.report ??= report
    this.begin()
    this.wakeWork()
  }

  // Nothing but the end of the process stops a handler that does not listen to its signal.
  abort(job, why, seconds) {
    job.stop(why, seconds, () => {
      log(`job ${job.id} does not stop: ${why}`)
      if (job.lost) process.exit(70) // before others run it
      this.stop(0, 70)
    })
  }

  forget(job) {
    if (this.held.get(keyOf(job)) === job) this.held.delete(keyOf(job))
  }

  lose(job, why, seconds) {
    job.lost = true
    this.forget(job)
    if (job.begun && !job.over) this.abort(job, why, seconds)
  }

  // Other workers have our jobs, or may have them soon.
  dead(why, seconds) {
    log(why)
    this.opened = undefined
    for (const job of [...this.held.values()]) this.lose(job, why, seconds)
    this.wakeWork()
  }

  stop(seconds = this.shutdown_s, code = 0) {
    this.exitCode ||= code
    this.stopping = true
    log('stopping: the handlers that run have', seconds, 's')
    this.begin() // hands back what has not begun
    this.wakeWork()
    setTimeout(() => {
      for (const job of this.held.values()) {
        job.handedBack = true
        this.abort(job, 'the worker ends', 1)
      }
      setTimeout(() => this.closed || process.exit(70), 10000).unref() // the database does not answer
    }, seconds * 1000).unref()
  }

  // Beats once, and waits until the next time.
  async beats(client) {
    if (client !== this.hearing) {
      await client.query(`listen ${this.schema}`)
      this.notified() // one may have been missed
      this.hearing = client
    }
    await this.pause('wakeBeat', this.opened ? await this.beat(client, true, false) : 1)
  }

  async beat(client, lock, lostAnswer) {
    const me = this.opened, sent = now(), values = [me.worker, ...idsOf([...this.held.values()])]
    const call = 'beat($1, $2::bigint[], $3::bigint[], $4, lost_answer => $5)'
    const [alive, ...stops] = await this.rows(client, call, [...values, lock, lostAnswer])
    if (me !== this.opened) return 0
    if (alive.kind === 'dead') return this.dead('declared dead') ?? 0
    this.aliveAt = sent
    this.maintain = alive.why?.includes('maintain')
    for (const { why, ...named } of stops) {
      const job = this.held.get(keyOf(named))
      if (!job || job.report || job.finished) continue
      if (why === 'lost') this.lose(job, 'the claim is lost')
      else if (job.begun) job.abort.abort(new Error('cancelled while it was running')) // it may ignore it
      else job.report = { do: 'release' }
    }
    this.wakeWork()
    return alive.next_in_s
  }

  pause(name, seconds) {
    return new Promise(done => {
      const timer = setTimeout(done, Math.min(Math.max(seconds, 0), 5) * 1000)
      this[name] = () => { clearTimeout(timer); done() }
    })
  }
}
