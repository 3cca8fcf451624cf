import { randomUUID } from 'node:crypto';
import { afterEach, describe, expect, it } from 'vitest';
import { type AnabranchClient, connectClient, openWriter, readSteps, reasonOf } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startTcpProxy } from '../support/tcp-proxy.ts';
import { startTestServer } from '../support/test-server.ts';

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

function clientOf(address: string): AnabranchClient {
  const client = connectClient({ address });
  cleanups.push(() => client.close());
  return client;
}

async function rewardsOf(client: AnabranchClient, trajectoryId: string): Promise<(number | undefined)[]> {
  const rewards: (number | undefined)[] = [];
  for await (const { step } of readSteps(client, { trajectoryId })) rewards.push(step.reward);
  return rewards;
}

describe.each(ENGINES)('a writer that creates its trajectory, on %s', (engine) => {
  it('W1, W12: a server that ends between the commit and `opened` creates one trajectory, and loses no step', async () => {
    const database = await createMigratedDatabase(engine);
    cleanups.push(() => database.drop());
    const first = await startTestServer({ database });
    cleanups.push(() => first.stop());
    const proxy = await startTcpProxy({ host: '127.0.0.1', port: first.port });
    cleanups.push(() => proxy.close());
    const client = clientOf(proxy.url);
    const trajectoryId = randomUUID();
    // Connects, so that the server learns nothing about the connection that it would have to answer.
    expect(await client.trajectories.getTrajectory({ trajectoryId }).catch(reasonOf)).toBe('TRAJECTORY_NOT_FOUND');

    proxy.mute();
    const opening = openWriter(client, { trajectoryId, create: { trajectory: { name: 'once' } } });
    const direct = clientOf(first.url);
    const created = () => direct.trajectories.getTrajectory({ trajectoryId }).catch(() => undefined);
    await expect.poll(async () => (await created())?.trajectory?.writerEpoch, { timeout: 20_000 }).toBe(1n);
    const before = await created();
    // Nothing listens there: a connection to a server that stops, whose answers are held back, would delay its end.
    proxy.retarget({ host: '127.0.0.1', port: 1 });
    proxy.cut();
    await first.stop();
    const second = await startTestServer({ database });
    cleanups.push(() => second.stop());
    proxy.retarget({ host: '127.0.0.1', port: second.port });
    await proxy.release();

    const writer = await opening;
    expect(writer).toMatchObject({ epoch: 2n, uid: before?.trajectory?.uid, nextStepNumber: 0n });
    await Promise.all([1, 2, 3].map((reward) => writer.append({ reward })));
    await writer.close();
    expect(await rewardsOf(client, trajectoryId)).toEqual([1, 2, 3]);
  });

  it('W1, W12: continues on a later connection by uid, and ends if the trajectory is deleted', async () => {
    const server = await startTestServer({ engine });
    cleanups.push(() => server.stop());
    const proxy = await startTcpProxy({ host: '127.0.0.1', port: server.port });
    cleanups.push(() => proxy.close());
    const client = clientOf(proxy.url);
    const main = randomUUID();
    const writer = await openWriter(client, { trajectoryId: main, create: { trajectory: { root: { reward: 0 } } } });
    await writer.append({ reward: 1 });
    proxy.cut();
    await writer.append({ reward: 2 });
    expect(await rewardsOf(client, main)).toEqual([0, 1, 2]);

    const branch = { trajectoryId: main, stepNumber: 1n };
    const other = await openWriter(client, { trajectoryId: randomUUID(), create: { branch } });
    await other.append({ reward: 3 });
    await other.close();
    expect(await rewardsOf(client, other.trajectoryId)).toEqual([0, 1, 3]);

    await client.trajectories.deleteTrajectory({ trajectoryId: other.trajectoryId });
    const late = openWriter(client, { trajectoryId: other.trajectoryId, create: { branch } });
    expect(await late.catch(reasonOf)).toBe('TRAJECTORY_NOT_FOUND');
    await client.trajectories.deleteTrajectory({ trajectoryId: main });
    expect(await writer.append({ reward: 4 }).catch(reasonOf)).toBe('TRAJECTORY_NOT_FOUND');
  });
});
