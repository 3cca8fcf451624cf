import type { AnabranchClient } from '../../src/client/web/index.ts';

/** The client of the page. This module needs no browser, so code that only makes calls can be tested without one. */
export type Api = Pick<AnabranchClient, 'trajectories' | 'runs' | 'rollouts' | 'server' | 'admin'>;
