/** Imports that are interrupted, or that run concurrently. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import { type ImportedVersion, type ImportOptions, type ImportProgress, importFle } from '../../src/fle/import.ts';
import { openFleSource } from '../../src/fle/open.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { createFleDatabase, type FleDatabase, PATHS, TREES } from './fle_database.ts';
import { pathsOf, programsOf } from './read_back.ts';

const IDS = TREES.map(({ id }) => id);

describe.each(ENGINES)('importFle, on %s', (engine) => {
  let server: TestServer;
  let client: AnabranchClient;
  let database: FleDatabase;
  beforeAll(async () => {
    server = await startTestServer({ engine });
    client = connectClient({ address: server.url });
    database = await createFleDatabase('sqlite');
    await database.insert(...TREES);
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
    await database?.drop();
  });

  async function importAll(
    experimentName: string,
    { signal = new AbortController().signal, onProgress = () => {} }: Partial<ImportOptions> = {},
  ): Promise<ImportedVersion[]> {
    const source = await openFleSource({ engine: 'sqlite', path: database.source }, 'source');
    try {
      return await importFle(client, { source, experimentName, dryRun: false, signal, onProgress });
    } finally {
      await source.close();
    }
  }

  it('reports the progress program by program', async () => {
    const seen: ImportProgress[] = [];
    await importAll('progress', { onProgress: (progress) => seen.push(progress) });
    expect(seen).toEqual(Array.from({ length: 13 }, (_, imported) => ({ imported, toImport: 12 })));
  });

  it('I3: continues where it was interrupted, after each program', async () => {
    for (const [times] of TREES.entries()) {
      const stop = new AbortController();
      const onProgress = ({ imported }: ImportProgress) => {
        if (imported > 0) stop.abort(new Error(`interruption ${times}`));
      };
      const interrupted = await importAll('interrupted', { signal: stop.signal, onProgress }).catch(
        (error: unknown) => error,
      );
      // Later interruptions may have nothing left to import.
      if (interrupted instanceof Error) expect(interrupted.message).toContain('interruption');
    }
    await importAll('interrupted');
    expect((await programsOf(client, 'interrupted')).map(({ metrics }) => metrics.program_id)).toEqual(IDS);
    expect(await pathsOf(client, 'interrupted')).toEqual(PATHS);
  });

  it('continues after an interruption before the first program', async () => {
    const stop = new AbortController();
    const onProgress = () => stop.abort(new Error('interruption'));
    await expect(importAll('before', { signal: stop.signal, onProgress })).rejects.toThrow('interruption');
    await importAll('before');
    expect(await pathsOf(client, 'before')).toEqual(PATHS);
  });

  it('I3: stores nothing twice when two imports run at the same time', async () => {
    const both = await Promise.allSettled([importAll('twice'), importAll('twice')]);
    for (const ended of both) {
      if (ended.status === 'rejected') expect(String(ended.reason)).toContain('Another import writes to run "fle-');
    }
    await importAll('twice');
    expect((await programsOf(client, 'twice')).map(({ metrics }) => metrics.program_id)).toEqual(IDS);
    expect(await pathsOf(client, 'twice')).toEqual(PATHS);
  });
});
