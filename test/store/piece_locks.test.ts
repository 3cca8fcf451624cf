import { randomBytes } from 'node:crypto';
import pg from 'pg';
import { expect, it, vi } from 'vitest';
import { makeStep } from '../support/steps.ts';
import { collectUnused } from './collection.ts';
import { describeStoreOn } from './on_store.ts';
import { putState, readWhole, type Scene } from './scene.ts';
import { waitingForLocks } from './sql.ts';
import { expectVerified } from './verified.ts';

const CHUNK = 256 * 1024;

/** Only on Postgres do several transactions write at once. */
describeStoreOn(['postgres'], 'locks of pieces of large states', (on) => {
  async function keep(scene: Scene, bytes: Buffer, base?: string) {
    const digest = await putState(scene.store, scene.namespace, bytes, CHUNK, base);
    const made = await scene.create();
    await scene.append(made, [makeStep(0n, { states: [{ name: 'env', digest, mediaType: '', size: bytes.length }] })]);
    return { digest, bytes, made };
  }

  const changed = (bytes: Buffer, piece: number, by: Buffer) => {
    const copy = Buffer.from(bytes);
    by.copy(copy, piece * CHUNK);
    return copy;
  };

  it('S2, S9: an upload that locks pieces of several states beside the deletion of one of them is in no deadlock', async () => {
    const scene = on.scene();
    // Piece 0 of the second state is a delta of the first one; the third has a piece 1 of its own, which the test
    // holds. An upload that follows the third has a delta of piece 0 of the second, and refers to piece 1 of the third
    // and then to piece 2 of the first.
    const first = await keep(scene, randomBytes(3 * CHUNK + 100));
    const second = await keep(scene, changed(first.bytes, 0, randomBytes(16)), first.digest);
    const third = await keep(scene, changed(second.bytes, 1, randomBytes(CHUNK)), second.digest);
    const fourth = changed(third.bytes, 0, randomBytes(32));
    await scene.delete(first.made);
    const query = vi.spyOn(pg.Client.prototype, 'query');
    const holder = new pg.Client(on.database.url);
    try {
      await holder.connect();
      await holder.query('begin');
      const [held] = (
        await holder.query(`select c.upload from anabranch.state_chunks as c
          join anabranch.states as s on s.upload = c.upload
          where s.digest = '\\x${third.digest}' and c.ordinal = 1 and c.data is not null for update of c`)
      ).rows;
      expect(held).toBeDefined();
      const uploading = keep(scene, fourth, third.digest);
      await waitingForLocks(on.sql.rows, 1);
      // Stores piece 0 of the second state whole, which the upload has locked.
      const collecting = collectUnused(scene.store);
      await waitingForLocks(on.sql.rows, 2);
      await holder.query('rollback');
      const [kept] = await Promise.all([uploading, collecting]);
      const failed = query.mock.settledResults.flatMap(({ type, value }) =>
        type === 'rejected' ? [String((value as { code?: unknown }).code)] : [],
      );
      expect(failed).toEqual([]);
      await collectUnused(scene.store);
      expect(await scene.store.findStates(scene.namespace, [first.digest], false)).toEqual([]);
      for (const { digest, bytes } of [second, third, kept]) {
        expect(Buffer.compare(await readWhole(scene.store, scene.namespace, digest), bytes)).toBe(0);
      }
      await expectVerified(scene.store);
    } finally {
      query.mockRestore();
      await holder.end();
    }
  });
});
