import { mkdtemp, readFile, rename, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { setInterval, setTimeout as wait } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { Role } from '../../gen/es/anabranch/v1/access_pb.js';
import { type AnabranchClient, connectClient, reasonOf } from '../../src/client/index.ts';
import { createAuthority, writeIssued } from '../support/certificates.ts';
import { ENGINES } from '../support/database.ts';
import { dose } from '../support/dose.ts';
import { requireIntact } from '../support/intact.ts';
import { inSeconds, TestIssuer } from '../support/issuer.ts';
import { reportFigures } from './figures.ts';
import { startNeighbourProcess } from './hostile/neighbour_process.ts';
import { Service } from './hostile/service.ts';
import { watchServer } from './watched/watched-server.ts';

/** Of one processor, for the process of the hostile neighbour. */
const CPU_SHARE = 0.5;
/** What each service does at least, beside the whole attack. */
const STEPS = dose(100n, 2_000n);
const ROLLOUTS = dose(6, 60);
/** Of tokens, in seconds. Servers accept them for another 30 seconds. */
const TOLERANCE = 30;
const TOKEN_LIFE = 8;
/** How often the third service must have read its token: each time after the first, the one before had expired. */
const TOKENS = 3;

/** Everything that the fourth key tries on the other services, by what it must be told. */
const INTRUSIONS: Readonly<
  Record<string, readonly [(client: AnabranchClient, victim: Service) => Promise<unknown>, string]>
> = {
  get: [({ trajectories }, { trajectoryId }) => trajectories.getTrajectory({ trajectoryId }), 'TRAJECTORY_NOT_FOUND'],
  follow: [
    async ({ trajectories }, { trajectoryId }) => {
      for await (const _ of trajectories.readSteps({ trajectoryId, follow: true })) return;
    },
    'TRAJECTORY_NOT_FOUND',
  ],
  'take over': [
    async ({ trajectories }, { trajectoryId }) => {
      async function* frames() {
        yield { open: { trajectoryId, writerId: 'mine', takeOverEpoch: 1n } };
      }
      for await (const _ of trajectories.appendSteps(frames())) return;
    },
    'TRAJECTORY_NOT_FOUND',
  ],
  claim: [
    ({ rollouts }, { stageId }) =>
      rollouts.claimRollouts({ stageId, workerId: 'mine', leaseDuration: { seconds: 60n } }),
    'STAGE_NOT_FOUND',
  ],
  delete: [
    ({ trajectories }, { trajectoryId }) => trajectories.deleteTrajectory({ trajectoryId }),
    'TRAJECTORY_NOT_FOUND',
  ],
  'name their namespace': [
    ({ trajectories }, { trajectoryId, name }) =>
      trajectories.getTrajectory({ trajectoryId }, { headers: { 'anabranch-namespace': name } }),
    'PERMISSION_DENIED',
  ],
};

describe.each(ENGINES)('strangers over TLS, on %s', (engine) => {
  it('N1, N2, MS5, MS6: two services with keys and one with a token that rotates work beside a hostile one, and notice nothing', async () => {
    const authority = createAuthority();
    const ca = authority.cert;
    const folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-strangers-'));
    const file = (name: string) => path.join(folder, name);
    await using issuer = await TestIssuer.start();
    await writeFile(
      file('principals.yaml'),
      'principals: [{ sub: "system:serviceaccount:judge:*", role: write, namespaces: [judge] }]',
    );
    const flags = {
      ...writeIssued(authority.issue()),
      auth: 'required',
      adminKeyFile: file('admin.key'),
      jwtIssuer: issuer.url,
      principals: file('principals.yaml'),
    };
    await using server = await watchServer({ engine, flags });
    const connected = (token: string | (() => Promise<string>)) =>
      connectClient({ address: server.url, ca, token }, {});
    const admin = connected((await readFile(file('admin.key'), 'utf8')).trim());
    const keyOf = async (name: string) =>
      (await admin.admin.createKey({ name, role: Role.WRITE, namespaces: [name] })).secret;

    await using projected = await projectToken(issuer, file('token'));
    const clients = [connected(await keyOf('trainer')), connected(await keyOf('collector')), connected(projected.read)];
    const services = await Promise.all(
      ['trainer', 'collector', 'judge'].map((name, i) => Service.start(clients[i]!, name)),
    );
    const token = await keyOf('hostile');
    let isAttacked = false;
    const isEnough = ({ steps, rollouts }: Service) => steps >= STEPS && rollouts >= ROLLOUTS;
    const isOver = () => isAttacked && projected.reads() >= TOKENS && services.every(isEnough);
    const working = Promise.all(services.map((service) => service.work(isOver)));
    const attack = async () => {
      const target = { url: server.url, port: server.port, ca, token };
      const neighbour = await startNeighbourProcess({ kind: 'hostile', target, cpuShare: CPU_SHARE });
      const intruder = connected(token);
      const told = await intrude(intruder, services);
      isAttacked = true;
      await working.catch(() => undefined);
      const rates = await neighbour.kill();
      intruder.close();
      return { told, rates };
    };
    const attacking = attack();
    await Promise.all([working, attacking]);
    const { told, rates } = await attacking;
    expect(told).toEqual(Object.values(INTRUSIONS).map(([, reason]) => reason));

    for (const service of services) await service.check();
    const [trainer, collector, judge] = services;
    expect([...trainer!.cuts, ...collector!.cuts]).toEqual([]);
    // An expired token ends its streams, and the client opens them again with the next one.
    expect(new Set(judge!.cuts.map(reasonOf))).toEqual(new Set(['UNAUTHENTICATED']));
    reportFigures(`strangers on ${engine}`, {
      ...Object.fromEntries(
        services.map(({ name, steps, rollouts }) => [name, `${steps} steps, ${rollouts} rollouts`]),
      ),
      tokens: projected.reads(),
    });
    reportFigures('the hostile one, a second', rates);
    for (const client of clients) client.close();
    await requireIntact(admin).finally(() => admin.close());
    await server.empty(10_000);
    expect(server.alive).toBe(true);
    expect(server.output()).not.toMatch(/internal error|unhandled|uncaught/iu);
    await rm(folder, { recursive: true });
  });
});

/** A file as Kubernetes mounts it: it has a new token long before the old one expires. */
async function projectToken(issuer: TestIssuer, file: string) {
  const renew = async () => {
    const exp = inSeconds(TOKEN_LIFE - TOLERANCE);
    await writeFile(`${file}.next`, `${issuer.token({ sub: 'system:serviceaccount:judge:default', exp })}\n`);
    await rename(`${file}.next`, file);
  };
  await renew();
  const over = new AbortController();
  const renewing = (async () => {
    for await (const _ of setInterval(1000, undefined, { signal: over.signal })) await renew();
  })();
  let reads = 0;
  return {
    read: () => {
      reads += 1;
      return readFile(file, 'utf8');
    },
    reads: () => reads,
    [Symbol.asyncDispose]: async () => {
      over.abort();
      await renewing.catch(() => undefined);
    },
  };
}

/** Tries everything on each victim until it is told what it must be told, and returns that. None may succeed. */
async function intrude(client: AnabranchClient, victims: readonly Service[]): Promise<(string | undefined)[]> {
  const told: (string | undefined)[] = [];
  for (const [intrusion] of Object.values(INTRUSIONS)) {
    const reasons = new Set<string | undefined>();
    for (const victim of victims) reasons.add(await reasonWhenServed(() => intrusion(client, victim)));
    told.push([...reasons].join());
  }
  return told;
}

/** Returns the reason of the refusal. The limit of the principal, which the rest of the attack uses up, is none. */
async function reasonWhenServed(call: () => Promise<unknown>): Promise<string | undefined> {
  for (;;) {
    const error = await call().then(
      () => new Error('it was answered'),
      (thrown: unknown) => thrown,
    );
    const reason = reasonOf(error);
    if (reason === 'CALLER_LIMIT' || reason === 'MEMORY_FULL') await wait(20);
    else return reason ?? String(error);
  }
}
