import { create, type MessageInitShape, toBinary } from '@bufbuild/protobuf';
import { LogMetricsRequestSchema } from '../gen/es/anabranch/v1/run_service_pb.js';
import { StepSchema } from '../gen/es/anabranch/v1/trajectory_pb.js';
import { Random } from '../src/demo/cartpole.ts';

/**
 * What a step of a bench holds. `step`: one of CartPole; `step-with-state`: the same with its state, about 430 bytes
 * encoded; `json`: one JSON text of exactly 430 bytes, what the same work is for other systems; `big-state`: a state of
 * 256,000 bytes and nothing else. All but the last have a thousand variants, in turn: a single one would flatter
 * compression.
 */
export type Payload = 'step' | 'step-with-state' | 'json' | 'big-state';

const MOST_VARIANTS = 1000;

/** How many different steps there are. Those whose numbers differ by a multiple of it are equal. */
export function variantsOf(payload: Payload): number {
  return payload === 'big-state' ? 1 : MOST_VARIANTS;
}

/**
 * Encoded append frames, made by patching a template. A message costs the load generator only a copy of bytes, so the
 * server is measured. Numbers are encoded as clients do, in as few bytes as possible, so there is a template for each
 * width.
 */
export class FrameTemplate {
  readonly #payload: Payload;
  readonly #steps: number;
  readonly #frames = new Map<number, PatchedFrame>();

  constructor(payload: Payload, stepsPerFrame: number) {
    this.#payload = payload;
    this.#steps = stepsPerFrame;
  }

  /** Bytes of most frames of a long stream. */
  get size(): number {
    return this.#patched(FAR_STEP).bytes.length;
  }

  /**
   * Returns the frame whose first step has this number. `stream` makes its states differ from those of other streams.
   */
  frame(stream: number, firstStep: number): Buffer {
    const { bytes, numbers, nonces } = this.#patched(firstStep);
    const frame = Buffer.from(bytes);
    for (let i = 0; i < numbers.length; i += 1) writeNumber(frame, numbers[i]!, firstStep + i);
    for (let i = 0; i < nonces.length; i += 1) writeNonce(frame, nonces[i]!, stream, firstStep + i);
    return frame;
  }

  #patched(firstStep: number): PatchedFrame {
    const width = numberWidth(firstStep);
    const ofWidth = Math.min(this.#steps, 128 ** width - firstStep);
    const key = (width * 2 ** 32 + ofWidth) * MOST_VARIANTS + (firstStep % variantsOf(this.#payload));
    const known = this.#frames.get(key);
    if (known !== undefined) return known;
    const made = patchedFrame(this.#payload, firstStep, this.#steps);
    this.#frames.set(key, made);
    return made;
  }
}

/** A frame, and where to write the numbers of its steps and the nonces of its states. */
interface PatchedFrame {
  readonly bytes: Buffer;
  readonly numbers: readonly number[];
  readonly nonces: readonly number[];
}

function patchedFrame(payload: Payload, firstStep: number, count: number): PatchedFrame {
  const parts: Uint8Array[] = [];
  const numbers: number[] = [];
  let length = 0;
  for (let number = firstStep; number < firstStep + count; number += 1) {
    const step = toBinary(StepSchema, create(StepSchema, { ...stepOf(payload, number), stepNumber: BigInt(number) }));
    const header = Buffer.concat([Buffer.of(STEPS_TAG), varint(BigInt(step.length))]);
    numbers.push(length + header.length + 1);
    parts.push(header, step);
    length += header.length + step.length;
  }
  const bytes = Buffer.concat(parts);
  return { bytes, numbers, nonces: positionsOf(bytes, NONCE_MARK) };
}

/** Tag of `AppendStepsRequest.steps`. */
const STEPS_TAG = 0x12;
/** A number of four bytes. */
const FAR_STEP = 3_000_000;

/** Bytes of a step's number. Zero is not written. */
function numberWidth(number: number): number {
  return number === 0 ? 0 : varint(BigInt(number)).length;
}

/** Writes a number over another one of the same width. */
function writeNumber(target: Buffer, at: number, number: number): void {
  if (number === 0) return;
  let to = at;
  let rest = number;
  for (; rest > 127; rest = Math.floor(rest / 128)) target[to++] = (rest % 128) | 128;
  target[to] = rest;
}

/** The ten series that a trainer logs after a step. */
const SERIES = 'loss kl entropy reward_mean reward_std lr grad_norm tokens seconds accuracy'.split(' ');

/** Encoded LogMetrics requests of one run, made by patching a template: ten series with the same steps. */
export class MetricTemplate {
  /** Steps of one request. */
  readonly steps: number;
  readonly #bytes: Buffer;
  readonly #numbers: number[];

  constructor(runId: string, pointsPerCall: number) {
    this.steps = pointsPerCall / SERIES.length;
    const points = Array.from({ length: pointsPerCall }, (_, i) => ({
      key: `train/${SERIES[i % SERIES.length]}`,
      metricStep: NUMBER_MARK,
      value: Math.sqrt(i + 1),
    }));
    this.#bytes = Buffer.from(toBinary(LogMetricsRequestSchema, create(LogMetricsRequestSchema, { runId, points })));
    this.#numbers = positionsOf(this.#bytes, NUMBER_BYTES);
  }

  batch(firstStep: number): Buffer {
    const batch = Buffer.from(this.#bytes);
    for (let i = 0; i < this.#numbers.length; i += 1)
      writeWideVarint(batch, this.#numbers[i]!, firstStep + Math.floor(i / SERIES.length));
    return batch;
  }
}

interface JsonItem {
  readonly type: string;
  readonly content: { readonly json: string };
}

/** The texts and bytes of one step, as a driver inserts them. */
export interface RowPayload {
  readonly actions: readonly JsonItem[];
  readonly observations: readonly JsonItem[];
  readonly metrics: Readonly<Record<string, number>>;
  /** Undefined: no state. `writeNonce` must write its nonce at `nonceAt`. */
  readonly state: Buffer | undefined;
  readonly nonceAt: number;
}

export function rowPayload(payload: Payload, stepNumber: number): RowPayload {
  const step = stepOf(payload, stepNumber);
  const state = step.states?.[0]?.data;
  const bytes = state === undefined ? undefined : Buffer.from(state);
  return {
    actions: (step.actions ?? []).map(jsonItem),
    observations: (step.observations ?? []).map(jsonItem),
    metrics: step.metrics ?? {},
    state: bytes,
    nonceAt: bytes?.indexOf(NONCE_MARK) ?? -1,
  };
}

function jsonItem({ type = '', content }: ItemInit): JsonItem {
  return { type, content: { json: content?.json ?? '' } };
}

export function writeNonce(target: Buffer, at: number, stream: number, step: number): void {
  target.write(`${String(stream).padStart(4, '0')}${String(step).padStart(12, '0')}`, at, 'latin1');
}

/** Returns a body that compresses to about a third, like the state of a game in JSON. */
export function stateBody(size: number): Buffer {
  const random = Random.seeded(20_261_121);
  let text = `{"nonce":"${NONCE_MARK.toString()}"`;
  for (let i = 0; text.length < size; i += 1) {
    text += `,"field_${i}":{"v":${whole(random, 1e9)},"t":"${words(random, 6)}"}`;
  }
  return Buffer.from(text.slice(0, size));
}

type ItemInit = { readonly type?: string; readonly content?: { readonly json?: string | undefined } | undefined };
type StepInit = Exclude<MessageInitShape<typeof StepSchema>, { $typeName: string }>;

/** Has a varint of five bytes, so that any smaller number fits in its place. */
const NUMBER_MARK = (1n << 34n) + 0x2a55aan;
const NUMBER_BYTES = varint(NUMBER_MARK);
export const NONCE_MARK = Buffer.from('NONCE-16-LETTERS');
const BIG_STATE_BYTES = 256_000;
const JSON_STEP_BYTES = 430;

function stepOf(payload: Payload, stepNumber: number): StepInit {
  if (payload === 'big-state') return { states: [{ data: stateBody(BIG_STATE_BYTES), mediaType: 'application/json' }] };
  const random = Random.seeded(FIRST_SEED + (stepNumber % MOST_VARIANTS));
  if (payload === 'json') return { observations: [{ type: 'json', content: { json: jsonStep(random) } }] };
  const observation = Array.from({ length: 4 }, () => random.uniform(-0.05, 0.05));
  return {
    actions: [{ type: 'discrete', content: { json: `${whole(random, 2)}` } }],
    observations: [{ type: 'box', content: { json: JSON.stringify(observation) } }],
    reward: 1,
    metrics: { tick: 1 + (stepNumber % MOST_VARIANTS) },
    states: payload === 'step-with-state' ? [{ data: cartPoleState(random), mediaType: 'application/json' }] : [],
  };
}

const FIRST_SEED = 20_240_607;

/** Returns the state of a CartPole environment: its numbers as the hexadecimal digits of doubles, and its generator. */
function cartPoleState(random: Random): Buffer {
  return Buffer.from(
    JSON.stringify({
      environment: 'CartPole-v1',
      state: Array.from({ length: 4 }, () => `0x3f${hex(random, 14)}`),
      generator: { name: 'xoshiro128**', words: random.state },
      steps: 200,
      nonce: NONCE_MARK.toString(),
    }),
  );
}

/** Returns one agent's step for other systems: compact JSON of exactly 430 bytes. */
function jsonStep(random: Random): string {
  const step = {
    i: 17,
    tool: 'bash',
    call_id: hex(random, 32),
    reward: whole(random, 1e6) / 1e6,
    tokens: [whole(random, 4000), whole(random, 900)],
    thought: '',
    observation: '',
  };
  const room = JSON_STEP_BYTES - JSON.stringify(step).length;
  const text = words(random, room).slice(0, room);
  step.thought = text.slice(0, room / 2);
  step.observation = text.slice(step.thought.length);
  return JSON.stringify(step);
}

function hex(random: Random, digits: number): string {
  return Array.from({ length: digits }, () => whole(random, 16).toString(16)).join('');
}

const WORDS =
  'the agent opens file reads line result error test passes patch apply search grep module class method'.split(' ');

function words(random: Random, count: number): string {
  return Array.from({ length: count }, () => WORDS[whole(random, WORDS.length)]).join(' ');
}

function whole(random: Random, below: number): number {
  return random.uint32() % below;
}

function positionsOf(bytes: Buffer, mark: Buffer): number[] {
  const positions: number[] = [];
  for (let at = bytes.indexOf(mark); at !== -1; at = bytes.indexOf(mark, at + 1)) positions.push(at);
  return positions;
}

function varint(value: bigint): Buffer {
  const bytes: number[] = [];
  for (let rest = value; ; rest >>= 7n) {
    if (rest < 128n) return Buffer.from([...bytes, Number(rest)]);
    bytes.push(Number(rest & 127n) | 128);
  }
}

function writeWideVarint(target: Buffer, at: number, value: number): void {
  let rest = value;
  for (let i = 0; i < 4; i += 1) {
    target[at + i] = (rest % 128) | 128;
    rest = Math.floor(rest / 128);
  }
  target[at + 4] = rest;
}
