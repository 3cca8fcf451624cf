import { randomUUID } from 'node:crypto';
import { create } from '@bufbuild/protobuf';
import { createClient, type Transport } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { AdminService } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { ServerService } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { type Step, StepSchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { reasonOf } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { AppendCall } from './append-call.ts';
import { withHeaders } from './headers.ts';
import { clientOf } from './rpcs/drive.ts';
import type { RpcClient } from './rpcs/scene.ts';
import { bytes } from './rpcs/scene.ts';
import { collect, putState } from './story.ts';

const TENANTS = ['red', 'blue'] as const;
type Tenant = (typeof TENANTS)[number];

/** Two tenants that name everything alike, and are served at the same time. */
describe.each(ENGINES)('N1: tenants with the same ids, on %s', (engine) => {
  let server: TestServer;
  const transports = new Map<Tenant, Transport>();
  const clients = new Map<Tenant, RpcClient>();
  const of = (tenant: Tenant) => clients.get(tenant)!;

  beforeAll(async () => {
    server = await startTestServer({ engine });
    for (const tenant of TENANTS) {
      const add = withHeaders({ 'anabranch-namespace': tenant });
      transports.set(tenant, createGrpcTransport({ baseUrl: server.url, interceptors: [add] }));
      clients.set(tenant, clientOf(transports.get(tenant)!));
    }
  });
  afterAll(() => server?.stop());

  const both = <T>(work: (tenant: Tenant) => Promise<T>) => Promise.all(TENANTS.map(work));
  const step = (tenant: Tenant, stepNumber: bigint): Step =>
    create(StepSchema, {
      stepNumber,
      observations: [{ type: 'word', content: { text: `${tenant} ${stepNumber}` } }],
      states: [{ name: 'env', data: bytes(`${tenant} ${stepNumber}`) }],
    });
  const textOf = ({ observations }: Step) => observations[0]?.content?.text;

  it('append in common groups, and each follower sees its own steps', async () => {
    const trajectoryId = randomUUID();
    const many = 50n;
    const seen = await both(async (tenant) => {
      const { trajectories } = of(tenant);
      await trajectories.createTrajectory({ trajectoryId, root: step(tenant, 0n) });
      const follow = async () => {
        const texts: (string | undefined)[] = [];
        for await (const { steps } of trajectories.readSteps({ trajectoryId, follow: true }))
          texts.push(...steps.map(textOf));
        return texts;
      };
      const following = follow();
      const { call } = await AppendCall.open(trajectories, { trajectoryId, writerId: 'writer' });
      for (let at = 1n; at < many; at += 1n) await call.append([step(tenant, at)]);
      await trajectories.sealTrajectory({ trajectoryId, writerEpoch: 1n, seal: { status: Status.COMPLETED } });
      return following;
    });
    const expected = (tenant: Tenant) => Array.from({ length: Number(many) }, (_, i) => `${tenant} ${i}`);
    expect(seen).toEqual(TENANTS.map(expected));
  });

  it('write and read through caches that the other has warmed', async () => {
    const trajectoryId = randomUUID();
    const branchId = randomUUID();
    for (const tenant of TENANTS) {
      const { trajectories } = of(tenant);
      await trajectories.createTrajectory({ trajectoryId, root: step(tenant, 0n) });
      await trajectories.appendStep({ trajectoryId, step: step(tenant, 1n) });
      // The two trees have different shapes: a cache of lineages must not serve one for the other.
      const stepNumber = tenant === 'red' ? 0n : 1n;
      await trajectories.branchTrajectory({ trajectoryId, stepNumber, branchId });
      await trajectories.appendStep({ trajectoryId: branchId, step: step(tenant, stepNumber + 1n) });
    }
    for (let round = 0; round < 3; round += 1) {
      const read = await both(async (tenant) => {
        const responses = await collect(of(tenant).trajectories.readSteps({ trajectoryId: branchId }));
        return responses.flatMap(({ steps }) => steps.map(textOf));
      });
      expect(read).toEqual([
        ['red 0', 'red 1'],
        ['blue 0', 'blue 1', 'blue 2'],
      ]);
    }
    await of('red').trajectories.deleteTrajectory({ trajectoryId: branchId });
    await of('blue').trajectories.appendStep({ trajectoryId: branchId, step: step('blue', 3n) });
    await expect(
      of('red').trajectories.appendStep({ trajectoryId: branchId, step: step('red', 2n) }),
    ).rejects.toSatisfy((error) => reasonOf(error) === 'TRAJECTORY_NOT_FOUND');
  });

  it('claim from stages with the same numbers: a waiting claim gets no rollout of the other', async () => {
    const runId = randomUUID();
    const stages = await both(async (tenant) => {
      const { runs, rollouts } = of(tenant);
      await rollouts.upsertTasks({ tasks: [{ id: 'task' }] });
      await runs.createRun({ runId, initialStatus: Status.RUNNING });
      const { stage } = await runs.getOrCreateStage({
        runId,
        kind: StageKind.EVAL,
        number: 1n,
        initialStatus: Status.RUNNING,
      });
      return stage!.id;
    });
    const left = new AbortController();
    const request = { workerId: 'worker', runId, wait: { seconds: 30n } };
    const none = of('red')
      .rollouts.claimRollouts(request, { signal: left.signal })
      .then(
        ({ claims }) => claims,
        () => [],
      );
    const blue = of('blue').rollouts.claimRollouts(request);
    await of('blue').rollouts.createRollouts({
      stageId: stages[1]!,
      rollouts: [{ groupNumber: 0n, number: 0n, taskId: 'task' }],
    });
    const { claims } = await blue;
    expect(claims).toHaveLength(1);
    const { id: rolloutId, trajectoryId } = claims[0]!.rollout!;
    await expect(of('red').rollouts.getRollout({ rolloutId })).rejects.toThrow();
    await expect(of('red').trajectories.getTrajectory({ trajectoryId })).rejects.toThrow();
    left.abort();
    expect(await none).toEqual([]);
    expect((await of('blue').rollouts.getRollout({ rolloutId })).rollout?.status).toBe(Status.INITIALIZING);
  });

  it('watch trees and runs with the same ids', async () => {
    const [treeId, runId] = [randomUUID(), randomUUID()];
    for (const tenant of TENANTS) {
      await of(tenant).trajectories.createTrajectory({ trajectoryId: treeId, name: `tree of ${tenant}` });
      await of(tenant).runs.createRun({ runId, name: `run of ${tenant}` });
    }
    const left = new AbortController();
    const names = await both(async (tenant) => {
      const { watch } = createClient(ServerService, transports.get(tenant)!);
      const subjects = { tree: { tree: { treeId } }, run: { run: { runId } } };
      const seen = new Set<string>();
      let asked = 0;
      for await (const { tree, run, caughtUp } of watch({ subjects }, { signal: left.signal })) {
        for (const node of tree?.nodes ?? []) seen.add(node.trajectory!.name);
        if (run?.run !== undefined) seen.add(run.run.name);
        if (!caughtUp) continue;
        asked += 1;
        // Both watchers are caught up: each change of one tenant is told to its own watcher only.
        if (asked === 2)
          await of(tenant).trajectories.updateTrajectory({
            trajectoryId: treeId,
            updateMask: { paths: ['name'] },
            name: `later ${tenant}`,
          });
        if (seen.has(`later ${tenant}`)) break;
      }
      return [...seen].sort();
    });
    left.abort();
    expect(names).toEqual([
      ['later red', 'run of red', 'tree of red'],
      ['later blue', 'run of blue', 'tree of blue'],
    ]);
  });

  it('download and export only their own states', async () => {
    const put = await both((tenant) => putState(of(tenant), bytes(`only of ${tenant}`)));
    const get = (tenant: Tenant, digest: string) =>
      fetch(`${server.url}/states/${digest}`, { headers: { 'anabranch-namespace': tenant } });
    expect(await (await get('red', put[0]!)).text()).toBe('only of red');
    const refusal = async (digest: string) => {
      const response = await get('blue', digest);
      const { code, message } = (await response.json()) as { code: string; message: string };
      return [response.status, code, message.replaceAll(digest, '<it>')];
    };
    expect(await refusal(put[0]!)).toEqual(await refusal('0'.repeat(64)));
    const exported = await both(async (tenant) => {
      const parts = await collect(createClient(AdminService, transports.get(tenant)!).exportArchive({}));
      return Buffer.concat(parts.map(({ chunk }) => chunk));
    });
    expect(exported[0]!.equals(exported[1]!)).toBe(false);
  });
});
