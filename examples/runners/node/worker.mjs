// A runner by docs/protocol.md: new Runner({task: async (payload, job) => result}).run()
import { uptime as now } from 'node:os' // goes on while the machine sleeps
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { Job, failure } from './job.mjs'
import { FOR_BEAT, FOR_WORK, Session } from './session.mjs'

const SCHEMA_VERSION = 1 // schema_version() of the database that this was tested with
const log = (...words) => console.error(new Date().toISOString(), ...words)
const keyOf = job => `${job.id}/${job.run}`

export class Runner {
  constructor(handlers, { schema = 'pyworker', connection, ...options } = {}) {
    Object.assign(this, { concurrency: 10, prefetch: 10, shutdown_s: 25, queues: null, flags: null }, options)
    this.handlers = handlers
    this.tasks = Object.keys(handlers)
    this.connection = { connectionString: process.env.DATABASE_URL, connectionTimeoutMillis: 5000,
      keepAlive: true, keepAliveInitialDelayMillis: 5000, ...connection }
    this.schema = pg.escapeIdentifier(schema)
    this.pool = new pg.Pool({ ...this.connection, max: this.concurrency * 2 }) // for handlers
    this.pool.on('error', () => {})
    this.pool.on('connect', client => client.on('error', () => {})) // one that is lost fails its query
    this.held = new Map() // all jobs that this worker has claimed and not reported
    this.running = 0 // handlers, also of jobs that are lost
    this.workAt = this.maintainAt = 0
    this.lostAt = Infinity // when to ask again which jobs a lost answer had
    this.wakeWork = this.wakeBeat = () => {}
  }

  async ask(call, values) { // one value, in a transaction of its own
    return (await this.pool.query(`select ${this.schema}.${call} as answer`, values)).rows[0].answer
  }

  get isSilent() { // no answer to a beat for so long that others may have our jobs
    return this.opened && now() > this.aliveAt + this.opened.stop_after_s
  }

  connect(settings, patience_s) {
    return Session.connect(this.connection, this.schema, settings, patience_s, payload => {
      if (payload === 'cancel') return this.wakeBeat()
      if (payload === 'migrate') this.migrated = true
      this.workAt = 0
      this.wakeWork()
    })
  }

  async run() { // until stop() is called; returns the exit code
    const fence = setInterval(() => {
      if (this.isSilent) this.dead('the database does not answer', 1)
    }, 200)
    const beats = this.keepBeating()
    await this.keepWorking()
    clearInterval(fence)
    this.closed = true
    this.wakeBeat()
    await beats
    await this.pool.end()
    return this.exitCode ?? 0
  }

  // -- work: report and claim, one call a turn

  async keepWorking() {
    let session
    for (let failures = 0; !this.stopping || this.held.size; ) {
      try {
        session ??= await this.connect(FOR_WORK, 60)
        if (!this.opened) await this.open(session)
        if (now() >= this.lostAt) await this.askForLost(session)
        if (this.migrated && !this.stopping) await session.rows('check_version($1)', [SCHEMA_VERSION])
        this.migrated = false
        await this.turn(session)
        failures = 0
      } catch (error) {
        const code = error instanceof pg.DatabaseError ? error.code : 'none'
        log(code, error.message)
        this.workAt = 0
        if (code === 'PW004') this.dead(error.message)
        else if (code === 'PW006') this.stop(this.shutdown_s, 56)
        else if (code.startsWith('22')) for (const job of this.ended()) job.report = failure(error)
        else if (/^(none|08|57P|25006)/.test(code)) {
          session?.cut()
          session = undefined
          this.lostAt = 0
          this.lostIn = 1
        }
        await sleep(Math.min(100 * 2 ** failures++, 5000) * (0.5 + Math.random() / 2))
      }
    }
    await session?.end()
  }

  async open(session) {
    const sent = now(), info = { name: 'node', pid: process.pid, task_identifiers: this.tasks }
    if (this.last) await session.closeWorker(this.last.worker)
    this.opened = this.last = await session.openWorker(info)
    this.aliveAt = sent
    this.lostAt = Infinity
    this.wakeBeat()
  }

  // The lost call may still commit: ask again after 1, 2, 4 … 64 s.
  async askForLost(session) {
    await this.beat(session, false, true)
    this.lostAt = this.lostIn > 64 ? Infinity : now() + this.lostIn
    this.lostIn *= 2
  }

  ended() {
    return [...this.held.values()].filter(job => job.report)
  }

  async turn(session) {
    const ended = this.ended(), me = this.opened
    const room = this.stopping ? 0 : this.concurrency + this.prefetch - this.held.size + ended.length
    if (now() >= this.maintainAt && !ended.length) {
      this.maintainAt = now() + 15
      await session.rows('maintain()')
    }
    if (!ended.length && !(room > 0 && now() >= this.workAt)) {
      return this.pause('wakeWork', room > 0 ? this.workAt - now() : 2.5)
    }
    const done = ended.filter(job => job.report.do === 'done')
    const others = ended.filter(job => job.report.do !== 'done')
    this.workAt = Infinity // a notification from now on sets it to 0
    const rows = await session.work(me.worker, done, others, room, this)
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
    log('refused', id, run, why)
    if (!job || why === 'stale' || job.report.error === why) return
    job.report = { do: 'fail', error: why } // malformed: the job still runs
    this.held.set(keyOf(job), job)
  }

  // -- handlers

  begin() {
    for (const job of this.held.values()) {
      if (job.begun || job.report) continue
      if (this.stopping) { job.report = { do: 'release' }; continue }
      if (this.running >= this.concurrency || this.alone) return
      if (this.isSilent) return
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

  // -- beat: once a second, on a connection of its own that holds the worker's lock

  async keepBeating() {
    const former = [] // their locks are worth keeping until another connection has answered
    let session
    while (!this.closed) {
      try {
        session ??= await this.connect(FOR_BEAT, 6)
        const next = this.opened ? await this.beat(session, true, false) : 1
        for (const old of former.splice(0)) old.cut()
        await this.pause('wakeBeat', next)
      } catch (error) {
        log('beat:', error.message)
        if (session) former.push(session)
        session = undefined
        await sleep(200 + Math.random() * 300)
      }
    }
    if (this.last) await session?.closeWorker(this.last.worker).catch(() => {})
    await session?.end()
  }

  async beat(session, lock, lostAnswer) {
    const me = this.opened, sent = now(), jobs = [...this.held.values()]
    const [alive, ...stops] = await session.beat(me.worker, jobs, lock, lostAnswer)
    if (me !== this.opened) return 0
    if (alive.kind === 'dead') return this.dead('declared dead') ?? 0
    this.aliveAt = sent
    for (const { why, ...named } of stops) {
      const job = this.held.get(keyOf(named))
      if (!job || job.report || job.finished) continue
      if (why === 'lost') this.lose(job, 'the claim is lost')
      else if (job.begun) job.abort.abort(new Error('cancelled while it was running')) // it may ignore it
      else job.report = { do: 'release' }
    }
    return alive.next_in_s
  }

  pause(name, seconds) {
    return new Promise(done => {
      const timer = setTimeout(done, Math.min(Math.max(seconds, 0), 5) * 1000)
      this[name] = () => { clearTimeout(timer); done() }
    })
  }
}
