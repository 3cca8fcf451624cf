import type { CartPoleObservation, Push } from './cartpole.ts';

/** The weights of the four observed numbers. */
export interface Gains {
  readonly x: number;
  readonly xDot: number;
  readonly theta: number;
  readonly thetaDot: number;
}

/** Pushes in the direction of the weighted sum. */
export function choosePush(gains: Gains, [x = 0, xDot = 0, theta = 0, thetaDot = 0]: CartPoleObservation): Push {
  return gains.x * x + gains.xDot * xDot + gains.theta * theta + gains.thetaDot * thetaDot > 0 ? 1 : 0;
}
