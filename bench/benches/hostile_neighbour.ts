import { randomUUID } from 'node:crypto';
import path from 'node:path';
import { createAuthority, writeIssued } from '../../test/support/certificates.ts';
import { alternate, type Bench, compare } from '../bench.ts';
import { runProgram } from '../processes.ts';
import type { NeighbourRun } from '../programs/neighbour.ts';
import { waitForAcks } from './lockstep.ts';

/** Of one processor, for the process of either neighbour. */
const CPU_SHARE = 0.5;
/** Bound of the p99 beside the hostile neighbour: this multiple of that beside the harmless one, and so much more. */
const TIMES = 2;
const MORE_MS = 5;

export const hostileNeighbour: Bench = {
  names: ['hostile-neighbour'],
  about:
    'p99 of one append that waits for its ack, over TLS, beside a hostile neighbour with a key of its own; against 5 ms more than twice the p99 beside an equally busy harmless one',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    // This process trusts the authorities of all rounds, so each needs a name of its own.
    const authority = createAuthority(randomUUID());
    const tls = { ...writeIssued(authority.issue()), ca: authority.cert };
    const keyFile = path.join(await run.resources.folder(), 'key');
    const server = await run.resources.server('real', run.engine, undefined, { keyFile, tls });
    const token = await server.key('neighbour');
    const [, port = ''] = server.address.split(':');
    const target = { url: `https://${server.address}`, port: Number(port), ca: authority.cert, token };
    const rates: Record<string, number> = {};
    const beside = async (kind: NeighbourRun['kind']): Promise<number> => {
      const seconds = run.warmupSeconds + run.seconds;
      const settings: NeighbourRun = { kind, target, cpuShare: CPU_SHARE, seconds };
      const neighbour = runProgram<Record<string, number>>('neighbour', settings);
      const { p99Ms } = await waitForAcks(run, server);
      const done = await neighbour;
      if (kind === 'hostile') Object.assign(rates, done);
      return p99Ms[0]!;
    };
    const samples = await alternate(run, {
      harmless: () => beside('harmless'),
      hostile: () => beside('hostile'),
    });
    const note = Object.entries(rates)
      .map(([name, perSecond]) => `${name} ${perSecond.toFixed(0)}/s`)
      .join(', ');
    const bounds = samples.harmless.map((ms) => TIMES * ms + MORE_MS);
    return [compare(run, { bench: 'hostile-neighbour', aim: '<= 1', unit: 'ms', note }, samples.hostile, bounds)];
  },
};
