/**
 * CartPole-v1: the published dynamics (Barto, Sutton and Anderson 1983; Gymnasium's constants, Euler), with noise on
 * the force. The noise makes the random generator part of the environment's state. A snapshot without it would restore
 * the cart in the right position, but with another future. A snapshot therefore contains everything, and a restored
 * environment continues bit for bit.
 */

const GRAVITY = 9.8;
const CART_MASS = 1.0;
const POLE_MASS = 0.1;
const TOTAL_MASS = CART_MASS + POLE_MASS;
/** Half of the length of the pole. */
const LENGTH = 0.5;
const POLE_MASS_LENGTH = POLE_MASS * LENGTH;
const FORCE = 10.0;
/** Seconds between two steps. */
const TAU = 0.02;
const MAX_POSITION = 2.4;
const MAX_ANGLE = (12 * 2 * Math.PI) / 360;
const MAX_STEPS = 500;

/** Direction of the force: left or right. */
export type Push = 0 | 1;

/** A linear controller: the weights of the four observed numbers. */
export interface Gains {
  readonly x: number;
  readonly xDot: number;
  readonly theta: number;
  readonly thetaDot: number;
}

/** Pushes in the direction of the weighted sum. */
export function choosePush(gains: Gains, [x = 0, xDot = 0, theta = 0, thetaDot = 0]: Float32Array): Push {
  return gains.x * x + gains.xDot * xDot + gains.theta * theta + gains.thetaDot * thetaDot > 0 ? 1 : 0;
}

/** Everything that decides the future. The numbers are doubles, while the observation is float32. */
export interface CartPoleState {
  readonly x: number;
  readonly xDot: number;
  readonly theta: number;
  readonly thetaDot: number;
  /** Largest deviation of the force, in newton. 0 is the published environment. */
  readonly noise: number;
  readonly steps: number;
  readonly generator: RandomState;
}

export class CartPole {
  #state: Omit<CartPoleState, 'generator'>;
  readonly #random: Random;

  /** Creates an environment with exactly this state. */
  constructor({ generator, ...state }: CartPoleState) {
    this.#state = state;
    this.#random = new Random(generator);
  }

  /** Begins an episode. Each of the four numbers is drawn uniformly from [-0.05, 0.05). */
  static reset(seed: number, noise: number): CartPole {
    const random = Random.seeded(seed);
    const start = () => random.uniform(-0.05, 0.05);
    const state = { x: start(), xDot: start(), theta: start(), thetaDot: start(), noise, steps: 0 };
    return new CartPole({ ...state, generator: random.state });
  }

  /** Restores the environment of a snapshot, bit for bit. */
  static restore(snapshot: Uint8Array): CartPole {
    return new CartPole(parseSnapshot(new TextDecoder('utf-8', { fatal: true }).decode(snapshot)));
  }

  get state(): CartPoleState {
    return { ...this.#state, generator: this.#random.state };
  }

  /** Position, velocity, angle and angular velocity, as float32. */
  get observation(): Float32Array {
    const { x, xDot, theta, thetaDot } = this.#state;
    return Float32Array.of(x, xDot, theta, thetaDot);
  }

  /** The pole fell, or the cart left the track. */
  get terminated(): boolean {
    const { x, theta } = this.#state;
    return Math.abs(x) > MAX_POSITION || Math.abs(theta) > MAX_ANGLE;
  }

  get truncated(): boolean {
    return this.#state.steps >= MAX_STEPS;
  }

  /** Moves the cart. The reward is 1 for every step, including the last one. */
  step(push: Push) {
    if (this.terminated || this.truncated) throw new Error('the episode has ended: reset or restore first');
    const { x, xDot, theta, thetaDot, noise, steps } = this.#state;
    const force = (push === 1 ? FORCE : -FORCE) + this.#random.uniform(-noise, noise);
    const cos = Math.cos(theta);
    const sin = Math.sin(theta);
    const pull = (force + POLE_MASS_LENGTH * (thetaDot * thetaDot) * sin) / TOTAL_MASS;
    const thetaAcc = (GRAVITY * sin - cos * pull) / (LENGTH * (4.0 / 3.0 - (POLE_MASS * (cos * cos)) / TOTAL_MASS));
    const xAcc = pull - (POLE_MASS_LENGTH * thetaAcc * cos) / TOTAL_MASS;
    const cart = { x: x + TAU * xDot, xDot: xDot + TAU * xAcc };
    const pole = { theta: theta + TAU * thetaDot, thetaDot: thetaDot + TAU * thetaAcc };
    this.#state = { ...cart, ...pole, noise, steps: steps + 1 };
    return { observation: this.observation, reward: 1, terminated: this.terminated, truncated: this.truncated };
  }

  /**
   * Returns the state as JSON text. The text is exact, because the shortest decimals that identify a double are parsed
   * as that double.
   */
  snapshot(): Uint8Array {
    const { x, xDot, theta, thetaDot, noise, steps } = this.#state;
    const fields = [
      '"environment":"CartPole-v1"',
      `"steps":${steps}`,
      ...Object.entries({ x, xDot, theta, thetaDot, noise }).map(([name, value]) => `"${name}":${exactJson(value)}`),
      `"generator":${JSON.stringify(this.#random.state)}`,
    ];
    return new TextEncoder().encode(`{${fields.join(',')}}`);
  }
}

/** Returns a number as JSON text that is parsed as the same bits. JSON.stringify would lose the sign of -0. */
export function exactJson(value: number): string {
  return Object.is(value, -0) ? '-0' : JSON.stringify(value);
}

function parseSnapshot(text: string): CartPoleState {
  const { environment, generator, ...numbers } = JSON.parse(text) as Record<string, unknown>;
  const { x, xDot, theta, thetaDot, noise, steps } = numbers;
  const finite = [x, xDot, theta, thetaDot, noise, steps].every((value) => Number.isFinite(value));
  if (environment !== 'CartPole-v1' || !finite || !Array.isArray(generator)) {
    throw new TypeError(`not a snapshot of CartPole-v1: ${text.slice(0, 80)}`);
  }
  return { ...(numbers as Omit<CartPoleState, 'generator'>), generator: generator as unknown as RandomState };
}

/** The whole state of a generator: four unsigned 32-bit words, not all zero. */
type RandomState = readonly [number, number, number, number];

/**
 * A small seeded generator whose whole state can be saved and restored. It is xoshiro128** by Blackman and Vigna,
 * seeded by SplitMix32, so that neighbouring seeds are unrelated. Not for secrets.
 */
export class Random {
  #words: Uint32Array;

  constructor(state: RandomState) {
    this.#words = Uint32Array.from(state);
    if (this.#words.every((word) => word === 0)) throw new RangeError('a generator cannot start from all zeros');
  }

  static seeded(seed: number): Random {
    const next = splitMix32(seed);
    return new Random([next(), next(), next(), next()]);
  }

  get state(): RandomState {
    const [a = 0, b = 0, c = 0, d = 0] = this.#words;
    return [a, b, c, d];
  }

  /** Returns an integer in [0, 2^32). */
  uint32(): number {
    const words = this.#words;
    const [a = 0, b = 0, c = 0, d = 0] = words;
    const result = Math.imul(rotateLeft(Math.imul(b, 5), 7), 9) >>> 0;
    words[0] = a ^ d ^ b;
    words[1] = b ^ c ^ a;
    words[2] = c ^ a ^ (b << 9);
    words[3] = rotateLeft(d ^ b, 11);
    return result;
  }

  /** Returns a double in [low, high) with 53 random bits. */
  uniform(low: number, high: number): number {
    const unit = ((this.uint32() >>> 5) * 2 ** 26 + (this.uint32() >>> 6)) / 2 ** 53;
    return low + unit * (high - low);
  }
}

function splitMix32(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x9e3779b9) >>> 0;
    let word = Math.imul(state ^ (state >>> 16), 0x21f0aaad);
    word = Math.imul(word ^ (word >>> 15), 0x735a2d97);
    return (word ^ (word >>> 15)) >>> 0;
  };
}

function rotateLeft(word: number, bits: number): number {
  return (word << bits) | (word >>> (32 - bits));
}
