import type { Gains } from './controller.ts';

/** A way to continue from the branch point: the same cart with another controller. */
export interface Variant {
  readonly name: string;
  readonly gains: Gains;
}

/** Keeps the pole up for all 500 steps. Tested with six thousand seeds. */
export const MAIN_GAINS: Gains = { x: 1, xDot: 1.5, theta: 20, thetaDot: 3 };

/** The variant whose client process is killed, and resumed by another process. */
export const KILLED: Variant = { name: 'hasty', gains: { x: 1, xDot: 1.5, theta: 20, thetaDot: 8 } };

/** The variant that is replayed from one of its own checkpoints. */
export const REPLAYED: Variant = { name: 'centring', gains: { x: 5, xDot: 4, theta: 20, thetaDot: 4 } };

/**
 * Two variants keep the pole up, one pushes the wrong way at the edge and may leave the track, and one always falls.
 */
export const VARIANTS: readonly Variant[] = [
  REPLAYED,
  KILLED,
  { name: 'drifting', gains: { x: -1, xDot: -1, theta: 20, thetaDot: 3 } },
  { name: 'angle only', gains: { x: 0, xDot: 0, theta: 1, thetaDot: 0 } },
];

/** The last step that the variants share with the main line. */
export const BRANCH_POINT = 200n;
/** From this step on, the first process of KILLED does not wait for acks, and is killed. */
export const KILL_AFTER = 300n;
/** The checkpoint that REPLAYED is replayed from. */
export const REPLAY_FROM = 250n;
/** Largest random deviation of the force, in newton. */
export const NOISE = 5;
