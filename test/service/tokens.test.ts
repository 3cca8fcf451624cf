import { create } from '@bufbuild/protobuf';
import { expect, it } from 'vitest';
import { ListOrder } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { AnabranchError } from '../../src/domain/errors.ts';
import { tokenBindingOf } from '../../src/service/request/digest.ts';
import { tokensOf } from '../../src/service/request/query_tokens.ts';
import type { App } from '../../src/stream/app.ts';
import { refusalOf } from '../store/scene.ts';
import { outsideSql } from '../store/sql.ts';
import { addTokenKey, forgetOldTokenKeys } from '../store/token_keys.ts';
import { callOf } from '../support/parts_call.ts';
import { type AppScene, describeApp } from './on_app.ts';
import { servicesOf } from './services.ts';

const { listTrajectories } = TrajectoryService.method;
/** Of the field `page_token`. */
const TOKEN_BYTES = 4096;

describeApp('page and resume tokens', (on) => {
  const pageOn = (app: App, { caller }: AppScene, pageToken = '') =>
    servicesOf(app, caller).listTrajectories({ pageSize: 1, pageToken });
  const tokenOf = async (app: App, scene: AppScene) => (await pageOn(app, scene)).nextPageToken;

  /** A namespace with two trajectories. */
  async function twoTrajectories(): Promise<{ scene: AppScene; oldest: string }> {
    const scene = on.scene();
    const { id } = await scene.create();
    await scene.create();
    return { scene, oldest: id };
  }

  /** All that a caller is told. */
  async function toldOf(call: Promise<unknown>): Promise<Pick<AnabranchError, 'reason' | 'message' | 'violations'>> {
    const { reason, message, violations } = await refusalOf(call);
    return { reason, message, violations };
  }

  it('RD12: serve after a restart and on other instances', async () => {
    const { scene, oldest } = await twoTrajectories();
    const token = await tokenOf(scene.app, scene);
    const other = on.app();
    expect(await pageOn(other, scene, token)).toMatchObject({ trajectories: [{ id: oldest }], nextPageToken: '' });
    expect(await tokenOf(other, scene)).toBe(token);
    await other.close();
  });

  it('RD12: are sealed by the newest key, and opened by all that there are', async () => {
    const { scene, oldest } = await twoTrajectories();
    const sql = await outsideSql(on.database);
    const before = on.app();
    const old = await tokenOf(before, scene);
    await addTokenKey(sql);
    const after = on.app();
    const renewed = await tokenOf(after, scene);
    expect(renewed).not.toBe(old);
    // The instance that began before the new key reads it when it meets such a token.
    for (const app of [after, before])
      for (const token of [old, renewed])
        expect(await pageOn(app, scene, token)).toMatchObject({ trajectories: [{ id: oldest }] });
    await forgetOldTokenKeys(sql);
    const last = on.app();
    expect(await pageOn(last, scene, renewed)).toMatchObject({ trajectories: [{ id: oldest }] });
    expect(await toldOf(pageOn(last, scene, old))).toEqual(await toldOf(pageOn(last, scene, 'none')));
    await Promise.all([sql.close(), before.close(), after.close(), last.close()]);
  });

  it('RD12: that were changed, cut, made up or sealed for another query are refused alike', async () => {
    const { scene } = await twoTrajectories();
    const { scene: elsewhere } = await twoTrajectories();
    const token = await tokenOf(scene.app, scene);
    const changed = Array.from(token, (letter, i) => {
      return `${token.slice(0, i)}${letter === 'A' ? 'Q' : 'A'}${token.slice(i + 1)}`;
    });
    const unsealed = Buffer.from(JSON.stringify(['query', '1'])).toString('base64url');
    const refused = [...changed, token.slice(1), token.slice(0, -1), `${token}A`, unsealed, 'none', '[]', '\u0001'];
    const calls = [
      ...refused.map((pageToken) => () => pageOn(scene.app, scene, pageToken)),
      () => pageOn(scene.app, elsewhere, token),
      () => scene.rpc.listTrajectories({ pageSize: 1, pageToken: token, name: 'another' }),
      () => scene.rpc.listTrajectories({ pageSize: 1, pageToken: token, ascending: true }),
      () => scene.rpc.listRuns({ pageSize: 1, pageToken: token }),
    ];
    for (const call of calls) {
      expect(await toldOf(call())).toEqual({
        reason: 'INVALID_PAGE_TOKEN',
        message:
          'page_token: belongs to another query: pass next_page_token of the previous page with all other fields unchanged, or leave it empty for the first page.',
        violations: [{ field: 'page_token', description: 'must be next_page_token of a page of the same query' }],
      });
    }
  });

  it('RD12: whose cursor another version wrote in another form are refused', async () => {
    const { scene } = await twoTrajectories();
    const binding = tokenBindingOf(scene.caller, listTrajectories, create(listTrajectories.input));
    const sealed = (text: string) => scene.app.tokens.seal(text, binding);
    expect((await pageOn(scene.app, scene, await sealed('["0"]'))).trajectories).toEqual([]);
    for (const text of ['[]', '["x"]', '{"key":"1"}', 'null', '']) {
      expect((await refusalOf(pageOn(scene.app, scene, await sealed(text)))).reason).toBe('INVALID_PAGE_TOKEN');
    }
  });

  it('RD12: have one length for keys of any size, and fit into a request with the largest name', async () => {
    const { scene } = await twoTrajectories();
    const tokens = tokensOf(callOf(scene.app, scene.caller), listTrajectories, create(listTrajectories.input));
    const lengths = [1n, 2n ** 62n].map(async (key) => (await tokens.seal([`${key}`])).length);
    expect(new Set(await Promise.all(lengths)).size).toBe(1);
    const name = '\u0001'.repeat(256);
    for (let i = 0; i < 2; i += 1) await scene.create({ name });
    const request = { order: ListOrder.NAME, pageSize: 1 };
    const { nextPageToken } = await scene.rpc.listTrajectories(request);
    expect(nextPageToken.length).toBeGreaterThan(256);
    expect(nextPageToken.length).toBeLessThanOrEqual(TOKEN_BYTES);
    const next = await scene.rpc.listTrajectories({ ...request, pageToken: nextPageToken });
    expect(next.trajectories).toMatchObject([{ name }]);
  });
});
