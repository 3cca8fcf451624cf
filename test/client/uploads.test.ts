import { expect, it } from 'vitest';
import type { Upload } from '../../src/client/step.ts';
import { Uploads } from '../../src/client/writer/uploads.ts';

it('S9: an upload names the one at the same place of the last step that had uploads', async () => {
  const put: Upload[] = [];
  const uploads = new Uploads(async (upload) => {
    put.push(upload);
  });
  const upload = (digest: string): Upload => ({ digest, bytes: new Uint8Array(3) });
  const added = [[upload('a'), upload('x')], [], [upload('b'), upload('y')], [upload('c')]].map((each) =>
    uploads.add(each),
  );
  expect(uploads.waitingBytes).toBe(15);
  await Promise.all(added);
  expect(put.map(({ digest, baseDigest }) => [digest, baseDigest])).toEqual([
    ['a', undefined],
    ['x', undefined],
    ['b', 'a'],
    ['y', 'x'],
    ['c', 'b'],
  ]);
  expect(uploads.waitingBytes).toBe(0);
});
