/** A client of a scripted peer; both are closed after the test. */
import { afterEach } from 'vitest';
import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import { type ScriptedPeer, type Scripts, startPeer } from './scripted-peer.ts';

const cleanups: (() => unknown)[] = [];

afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

export async function connected(scripts: Scripts): Promise<{ peer: ScriptedPeer; client: AnabranchClient }> {
  const peer = await startPeer(scripts);
  const client = connectClient({ address: peer.url });
  cleanups.push(
    () => peer[Symbol.asyncDispose](),
    () => client.close(),
  );
  return { peer, client };
}
