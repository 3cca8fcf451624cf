import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { GetTrajectoryRequestSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { claimsOf, inSeconds, newSigningKey, tokenOf } from '../../test/support/issuer.ts';
import { alternate, type Bench, compare, type Run } from '../bench.ts';
import { runProgram } from '../processes.ts';
import type { RequestFigures, RequestSettings } from '../programs/request.ts';
import type { ServerSettings } from '../programs/server.ts';
import type { BenchServer } from '../resources.ts';
import { delivery } from './follow.ts';
import { BATCH, ingest, SINGLE } from './ingest.ts';
import { waitForAcks } from './lockstep.ts';
import { QUEUED, queueOf } from './rollouts.ts';
import { encoded } from './rpc_latency.ts';

/** Benches of callers that show an API key or a token, against the same callers of a server that needs none. */
export const authBenches: readonly Bench[] = [
  ofServer('call', 'ms', '<= 1.05', getTrajectory),
  withToken(),
  ofServer('ingest-single', 'steps/s', '>= 0.97', (run, server) => ingest(run, server, SINGLE)),
  ofServer('ingest-batch', 'steps/s', '>= 0.97', (run, server) => ingest(run, server, BATCH)),
  ofServer('lockstep', 'ms', '<= 1.03', async (run, server) => (await waitForAcks(run, server)).p50Ms[0]!),
  ofServer('follow', 'ms', '<= 1.03', async (run, server) => (await delivery(run, server, server)).p50Ms),
  withKey('claims', 'claims/s', '>= 0.97', async (run, keyFile) => {
    const queue = await queueOf(run, QUEUED);
    return { key: () => queue.claim(QUEUED / 2, { keyFile }), plain: () => queue.claim(QUEUED / 2) };
  }),
];

type Measure = () => Promise<number>;

function withKey(
  name: string,
  unit: string,
  aim: string,
  prepare: (run: Run, keyFile: string) => Promise<{ readonly key: Measure; readonly plain: Measure }>,
): Bench {
  const bench = `${name}-auth`;
  return {
    names: [bench],
    about: `${name === 'call' ? 'p50 of GetTrajectory' : `\`${name}\``} with an API key, against the same without`,
    engines: ['sqlite', 'postgres'],
    async run(run) {
      const samples = await alternate(run, await prepare(run, path.join(await run.resources.folder(), 'key')));
      return [compare(run, { bench, aim, unit }, samples.key, samples.plain)];
    },
  };
}

function ofServer(
  name: string,
  unit: string,
  aim: string,
  measure: (run: Run, server: BenchServer) => Promise<number>,
): Bench {
  return withKey(name, unit, aim, async (run, keyFile) => {
    const key = await run.resources.server('real', run.engine, undefined, { keyFile });
    const plain = await run.resources.server('real', run.engine);
    return { key: () => measure(run, key), plain: () => measure(run, plain) };
  });
}

/** A token that the server has seen before. */
function withToken(): Bench {
  const bench = 'call-token';
  return {
    names: [bench],
    about: 'p50 of GetTrajectory with a token (JWT), against the same without',
    engines: ['sqlite', 'postgres'],
    async run(run) {
      const issuer = issuerIn(await run.resources.folder());
      const token = await run.resources.server('real', run.engine, undefined, { issuer });
      const plain = await run.resources.server('real', run.engine);
      const samples = await alternate(run, {
        key: () => getTrajectory(run, token),
        plain: () => getTrajectory(run, plain),
      });
      return [compare(run, { bench, aim: '<= 1.05', unit: 'ms' }, samples.key, samples.plain)];
    },
  };
}

function issuerIn(folder: string): NonNullable<ServerSettings['issuer']> {
  const [jwtJwks, principals] = [path.join(folder, 'keys.json'), path.join(folder, 'principals.yaml')];
  const jwtIssuer = 'https://issuer.example';
  const key = newSigningKey();
  writeFileSync(jwtJwks, JSON.stringify({ keys: [key.jwk] }));
  writeFileSync(principals, 'principals: [{ sub: agent, role: admin }]');
  const token = tokenOf(key, claimsOf(jwtIssuer, { exp: inSeconds(24 * 3600) }));
  return { flags: { jwtIssuer, jwtJwks, principals }, token };
}

async function getTrajectory({ warmupSeconds, seconds }: Run, server: BenchServer): Promise<number> {
  const { address, token } = server;
  const [trajectoryId] = await server.trajectories(1);
  const request = encoded(GetTrajectoryRequestSchema, { trajectoryId: trajectoryId! });
  const method = '/anabranch.v1.TrajectoryService/GetTrajectory';
  const settings: RequestSettings = { address, token, method, request, warmupSeconds, seconds };
  return (await runProgram<RequestFigures>('request', settings)).p50Ms;
}
