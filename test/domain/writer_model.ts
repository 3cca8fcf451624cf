import { decideAppend, decideOpen, type Head } from '../../src/domain/append.ts';
import { AnabranchError } from '../../src/domain/errors.ts';
import type { PackedStep } from '../../src/domain/step_codec/packed_step.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { packed } from '../support/packed_steps.ts';
import { wordStep } from '../support/steps.ts';

/**
 * A small model of writing, to be explored exhaustively. It has two writers, each a process that follows W12, and one
 * trajectory whose every decision is that of the domain (W1, W2). Connections may be cut at any time, and their frames
 * may arrive long after the writer gave them up. Somebody may delete the trajectory and create its id again (B3).
 */

/** A rule that is left out, to check that the exploration notices. */
export type Omission = 'take_over_epoch' | 'uid' | 'replay_below_end' | 'epoch_check';

export interface Bounds {
  readonly steps: readonly [number, number];
  readonly failures: number;
  readonly omit: ReadonlySet<Omission>;
}

type Frame = { t: 'open'; uid: number; takeOver: number } | { t: 'step'; n: number };
type Answer =
  | { t: 'opened'; epoch: number; uid: number; next: number }
  | { t: 'ack'; next: number }
  | { t: 'error'; reason: string; holder: number; epoch: number };

interface Connection {
  readonly writer: number;
  /** After a cut, sent frames may still arrive; answers are lost. */
  cut: boolean;
  sent: Frame[];
  answers: Answer[];
  /** The stream in the server: uid and epoch that it was granted (0: not opened yet), or ended. */
  uid: number;
  epoch: number;
  over: boolean;
}

interface Writer {
  phase: 'idle' | 'opening' | 'streaming' | 'done' | 'failed';
  failure: string;
  uid: number;
  epoch: number;
  /** The epoch that a refusal named before the first `opened`. */
  refusedBy: number;
  /** Number of its first step; -1 before the first `opened`. */
  base: number;
  acked: number;
  made: number;
  next: number;
}

interface Stored {
  readonly word: string;
  readonly epoch: number;
}

export interface State {
  failures: number;
  uid: number;
  epoch: number;
  holder: number;
  steps: Stored[];
  writers: [Writer, Writer];
  connections: Connection[];
}

const NOBODY = -1;

export function start(bounds: Bounds): State {
  const writer = (): Writer => ({
    phase: 'idle',
    failure: '',
    uid: 0,
    epoch: 0,
    refusedBy: 0,
    base: -1,
    acked: 0,
    made: 0,
    next: 0,
  });
  return {
    failures: bounds.failures,
    uid: 1,
    epoch: 0,
    holder: NOBODY,
    steps: [],
    writers: [writer(), writer()],
    connections: [],
  };
}

/** A text that is equal exactly for equal states. */
export function nameOf(state: State): string {
  const { failures, uid, epoch, holder, steps, writers, connections } = state;
  let name = `${failures} ${uid} ${epoch} ${holder}`;
  for (const step of steps) name += ` ${step.word} ${step.epoch}`;
  for (const w of writers)
    name += `|${w.phase} ${w.failure} ${w.uid} ${w.epoch} ${w.refusedBy} ${w.base} ${w.acked} ${w.made} ${w.next}`;
  for (const c of connections) {
    name += `|${c.writer} ${c.cut} ${c.over} ${c.uid} ${c.epoch}`;
    for (const frame of c.sent) name += frame.t === 'open' ? ` o${frame.uid} ${frame.takeOver}` : ` s${frame.n}`;
    for (const each of c.answers) name += nameOfAnswer(each);
  }
  return name;
}

function nameOfAnswer(what: Answer): string {
  if (what.t === 'ack') return ` a${what.next}`;
  return what.t === 'opened'
    ? ` O${what.epoch} ${what.uid} ${what.next}`
    : ` e${what.reason} ${what.holder} ${what.epoch}`;
}

/** Every state that one event leads to. */
export function* successors(state: State, bounds: Bounds): Generator<State> {
  for (const who of [0, 1]) {
    const writer = state.writers[who] as Writer;
    const live = state.connections.findIndex((each) => each.writer === who && !each.cut);
    if (writer.phase === 'idle') yield after(state, (s) => connect(s, who, bounds));
    if (writer.phase === 'streaming' && writer.next < writer.base + (bounds.steps[who] as number))
      yield after(state, (s) => send(s, who));
    if (live !== -1 && state.failures > 0) yield after(state, (s) => cut(s, who));
  }
  for (const [i, connection] of state.connections.entries()) {
    if (connection.sent.length > 0) yield after(state, (s) => serve(s, s.connections[i] as Connection, bounds));
    if (connection.answers.length > 0) yield after(state, (s) => receive(s, s.connections[i] as Connection, bounds));
  }
  if (state.failures > 0) yield after(state, makeAgain);
}

function after(state: State, event: (state: State) => void): State {
  const next: State = {
    ...state,
    steps: [...state.steps],
    writers: [{ ...state.writers[0] }, { ...state.writers[1] }],
    connections: state.connections.map((each) => ({ ...each, sent: [...each.sent], answers: [...each.answers] })),
  };
  event(next);
  next.connections = next.connections.filter((each) => !each.cut || (each.sent.length > 0 && !each.over));
  return next;
}

/**
 * W12: the first open names no epoch, or the epoch that a refusal named; later opens name the uid and epoch granted
 * last.
 */
function connect(state: State, who: number, { omit }: Bounds): void {
  const writer = state.writers[who] as Writer;
  const uid = omit.has('uid') ? 0 : writer.uid;
  const takeOver = writer.base === -1 ? writer.refusedBy : writer.epoch;
  const open: Frame = { t: 'open', uid, takeOver };
  state.connections.push({ writer: who, cut: false, sent: [open], answers: [], uid: 0, epoch: 0, over: false });
  writer.phase = 'opening';
}

function send(state: State, who: number): void {
  const writer = state.writers[who] as Writer;
  live(state, who)?.sent.push({ t: 'step', n: writer.next });
  writer.next += 1;
  writer.made = Math.max(writer.made, writer.next - writer.base);
}

function cut(state: State, who: number): void {
  state.failures -= 1;
  leave(state, who, 'idle');
}

function leave(state: State, who: number, phase: Writer['phase'], failure = ''): void {
  const connection = live(state, who);
  if (connection !== undefined) {
    connection.cut = true;
    connection.answers = [];
  }
  Object.assign(state.writers[who] as Writer, { phase, failure });
}

function live(state: State, who: number): Connection | undefined {
  return state.connections.find((each) => each.writer === who && !each.cut);
}

/** B3: the id is created again, with another uid. */
function makeAgain(state: State): void {
  Object.assign(state, { failures: state.failures - 1, uid: state.uid + 1, epoch: 0, holder: NOBODY, steps: [] });
}

function serve(state: State, connection: Connection, { omit }: Bounds): void {
  const frame = connection.sent.shift() as Frame;
  if (connection.over) return;
  try {
    if (frame.t === 'open') serveOpen(state, connection, frame, omit);
    else serveStep(state, connection, frame.n, omit);
  } catch (error) {
    if (!(error instanceof AnabranchError)) throw error;
    connection.over = true;
    const { writer_id = `${NOBODY}`, writer_epoch = '0' } = error.metadata;
    answer(connection, { t: 'error', reason: error.reason, holder: Number(writer_id), epoch: Number(writer_epoch) });
  }
}

function serveOpen(
  state: State,
  connection: Connection,
  open: Extract<Frame, { t: 'open' }>,
  omit: ReadonlySet<Omission>,
): void {
  const asFlag = omit.has('take_over_epoch') && open.takeOver > 0;
  const epoch = decideOpen(rowOf(state), {
    trajectoryId: 't',
    uid: open.uid === 0 ? undefined : `${open.uid}`,
    writerId: `${connection.writer}`,
    takeOverEpoch: asFlag ? BigInt(state.epoch) : BigInt(open.takeOver),
    expectedNextStepNumber: undefined,
  });
  Object.assign(state, { epoch: Number(epoch), holder: connection.writer });
  Object.assign(connection, { epoch: Number(epoch), uid: state.uid });
  answer(connection, { t: 'opened', epoch: Number(epoch), uid: state.uid, next: state.steps.length });
}

function serveStep(state: State, connection: Connection, n: number, omit: ReadonlySet<Omission>): void {
  if (connection.uid !== state.uid) throw new AnabranchError('TRAJECTORY_NOT_FOUND', '');
  const { nextStepNumber, ...row } = rowOf(state);
  const head: Head = { ...row, end: nextStepNumber };
  const word = `${connection.writer}:${n}`;
  const step = stepOf(n, word);
  const writerEpoch = BigInt(omit.has('epoch_check') ? state.epoch : connection.epoch);
  const writing = { trajectoryId: 't', writerEpoch, steps: [step], tags: [], seal: undefined };
  const { appended } = decideAppend(head, writing, (number) => {
    const stored = state.steps[Number(number)];
    return stored && stepOf(Number(number), stored.word).bytes;
  });
  if (appended.length > 0) state.steps.push({ word, epoch: connection.epoch });
  answer(connection, { t: 'ack', next: n + 1 });
}

/** Equal steps are one object. */
function stepOf(n: number, word: string): PackedStep {
  const key = `${n} ${word}`;
  const step = STEPS.get(key) ?? packed(wordStep(BigInt(n), word));
  STEPS.set(key, step);
  return step;
}

const STEPS = new Map<string, PackedStep>();

function answer(connection: Connection, what: Answer): void {
  if (!connection.cut) connection.answers.push(what);
}

function rowOf(state: State): Trajectory {
  return {
    ref: { tree: 1n, key: 1n },
    id: 't',
    uid: `${state.uid}`,
    treeId: 't',
    parent: undefined,
    name: '',
    taskId: '',
    runId: '',
    experimentId: '',
    labels: new Map(),
    metadataJson: '',
    metrics: new Map(),
    scoredMetrics: [],
    status: 'RUNNING',
    statusMessage: '',
    writerId: state.holder === NOBODY ? '' : `${state.holder}`,
    writerEpoch: BigInt(state.epoch),
    nextStepNumber: BigInt(state.steps.length),
    rewardSum: 0,
    branchRewardSum: undefined,
    createTime: 0n,
    updateTime: 0n,
    sealTime: undefined,
    hidden: false,
  };
}

/** W12, on the side of the writer. */
function receive(state: State, connection: Connection, bounds: Bounds): void {
  const who = connection.writer;
  const writer = state.writers[who] as Writer;
  const what = connection.answers.shift() as Answer;
  if (what.t === 'error') refused(state, who, what);
  else if (what.t === 'opened') opened(state, who, what, bounds);
  else writer.acked = Math.max(writer.acked, what.next);
  const through = writer.acked === writer.base + (bounds.steps[who] as number);
  if (writer.phase === 'streaming' && through) leave(state, who, 'done');
}

function opened(state: State, who: number, what: Extract<Answer, { t: 'opened' }>, { omit }: Bounds): void {
  const writer = state.writers[who] as Writer;
  if (writer.base === -1) Object.assign(writer, { base: what.next, acked: what.next });
  if (what.next < writer.acked || what.next > writer.base + writer.made) {
    leave(state, who, 'failed', 'UNEXPECTED_END');
    return;
  }
  if (omit.has('replay_below_end')) writer.acked = Math.max(writer.acked, what.next);
  Object.assign(writer, { phase: 'streaming', uid: what.uid, epoch: what.epoch, next: writer.acked });
}

function refused(state: State, who: number, error: Extract<Answer, { t: 'error' }>): void {
  const writer = state.writers[who] as Writer;
  const fenced = error.reason === 'WRITER_FENCED';
  const first = writer.base === -1;
  if (!fenced || (error.holder !== who && !first)) {
    leave(state, who, 'failed', error.reason);
    return;
  }
  if (error.holder !== who) writer.refusedBy = error.epoch;
  leave(state, who, 'idle');
}
