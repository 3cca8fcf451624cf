import type { CartPoleObservation, Push } from './cartpole.ts';

/** How strongly the controller answers to each of the four numbers it sees. */
export interface Gains {
  readonly x: number;
  readonly xDot: number;
  readonly theta: number;
  readonly thetaDot: number;
}

/** Pushes to the side to which the weighted sum leans. */
export function choosePush(gains: Gains, [x = 0, xDot = 0, theta = 0, thetaDot = 0]: CartPoleObservation): Push {
  return gains.x * x + gains.xDot * xDot + gains.theta * theta + gains.thetaDot * thetaDot > 0 ? 1 : 0;
}
