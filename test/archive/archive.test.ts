import { execFileSync } from 'node:child_process';
import { hash, randomBytes } from 'node:crypto';
import { constants, zstdCompressSync, zstdDecompressSync } from 'node:zlib';
import { create, toBinary } from '@bufbuild/protobuf';
import { sizeDelimitedDecodeStream } from '@bufbuild/protobuf/wire';
import { describe, expect, it } from 'vitest';
import { StepStateSchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { writeHeader } from '../../src/archive/entries.ts';
import { readArchive } from '../../src/archive/read.ts';
import { writeArchive } from '../../src/archive/write.ts';
import type { ArchivePart } from '../../src/domain/archive.ts';
import { AnabranchError } from '../../src/domain/errors.ts';

const ID = '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c5b6a';
const LARGE = randomBytes(600 * 1024);
const SMALL = Buffer.from('small');
const EMPTY = Buffer.alloc(0);

function state(bytes: Buffer, offset = 0, end = bytes.length): ArchivePart {
  const digest = hash('sha256', bytes, 'hex');
  return { kind: 'state', digest, size: bytes.length, offset, bytes: bytes.subarray(offset, end) };
}

const SMALL_STATES: ArchivePart = {
  kind: 'small_states',
  states: [SMALL, EMPTY, LARGE.subarray(0, 4000)].map((data) => {
    return { digest: hash('sha256', data, 'hex'), data: new Uint8Array(data) };
  }),
};

const PARTS: readonly ArchivePart[] = [
  { kind: 'records', text: '{"record":"archive","text":"ü"}\n' },
  ...[0, 256 * 1024, 512 * 1024].map((at) => state(LARGE, at, Math.min(at + 256 * 1024, LARGE.length))),
  SMALL_STATES,
  state(EMPTY),
  { kind: 'steps', trajectoryId: ID, firstStepNumber: 2n ** 62n, bytes: Buffer.from([1, 2, 3]) },
  { kind: 'records', text: '{"record":"end"}\n' },
];

async function* iterated<T>(items: Iterable<T>): AsyncGenerator<T> {
  yield* items;
}

async function written(parts: readonly ArchivePart[]): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of writeArchive(iterated(parts))) chunks.push(chunk);
  return Buffer.concat(chunks);
}

async function read(bytes: Buffer, pieceBytes = 1000): Promise<ArchivePart[]> {
  const pieces = Array.from({ length: Math.ceil(bytes.length / pieceBytes) }, (_, i) =>
    bytes.subarray(i * pieceBytes, (i + 1) * pieceBytes),
  );
  const parts: ArchivePart[] = [];
  for await (const part of readArchive(iterated(pieces))) parts.push(part);
  return parts;
}

/** The message of the ARCHIVE_INVALID with which the bytes are refused. */
async function refusal(bytes: Buffer): Promise<string> {
  const error: unknown = await read(bytes).then(
    () => undefined,
    (caught: unknown) => caught,
  );
  expect(error).toBeInstanceOf(AnabranchError);
  expect((error as AnabranchError).reason).toBe('ARCHIVE_INVALID');
  return (error as AnabranchError).message;
}

/** An archive with one entry, packed. */
function withEntry(name: string, content: Buffer, change: (header: Buffer) => void = () => {}): Buffer {
  const header = Buffer.from(writeHeader({ name, size: content.length }));
  change(header);
  const padding = Buffer.alloc((512 - (content.length % 512)) % 512);
  return zstdCompressSync(Buffer.concat([header, content, padding, Buffer.alloc(1024)]));
}

describe('the bytes of an archive', () => {
  it('V5: are read as the parts that were written, in chunks of any size', async () => {
    const bytes = await written(PARTS);
    for (const size of [1, 511, 100_000]) {
      const parts = await read(size === 1 ? await written(PARTS.slice(4)) : bytes, size);
      expect(parts).toEqual(size === 1 ? PARTS.slice(4) : PARTS);
    }
  });

  it('V5: are a tar file that tar lists', async () => {
    const tar = zstdDecompressSync(await written(PARTS));
    const listed = execFileSync('tar', ['-tf', '-'], { input: tar, encoding: 'utf8' }).trim().split('\n');
    expect(listed.map((name) => name.replace(/[0-9a-f]{64}/, 'DIGEST'))).toEqual([
      'records/00000001.DIGEST.jsonl',
      'states/DIGEST',
      'small_states/DIGEST.binpb',
      'states/DIGEST',
      `steps/${ID}/${2n ** 62n}.DIGEST.binpb`,
      'records/00000002.DIGEST.jsonl',
    ]);
  });

  it('V6: a cut at any place is refused', async () => {
    const bytes = await written(PARTS.slice(4));
    for (let length = 0; length < bytes.length; length += 29) {
      expect(await refusal(bytes.subarray(0, length))).toMatch(/cut off|no zstd/);
    }
  });

  it('V6: bytes after the end are refused', async () => {
    const bytes = await written(PARTS.slice(4));
    const more = [Buffer.from('more'), Buffer.alloc(1), bytes, zstdCompressSync(Buffer.from('more'))];
    for (const follows of more) {
      expect(await refusal(Buffer.concat([bytes, follows]))).toMatch(/bytes that are no zstd follow|more follows/);
    }
  });

  it('V6: a flipped byte is refused', async () => {
    const bytes = await written(PARTS);
    for (let at = 10; at < bytes.length; at += Math.ceil(bytes.length / 20)) {
      const flipped = Buffer.from(bytes);
      flipped[at] = flipped[at]! ^ 0xff;
      await expect(read(flipped, 100_000).then((parts) => expect(parts).toEqual(PARTS))).rejects.toThrow();
    }
  });

  it.each(['../records', '/etc/passwd', 'records/../../x', `states/../${'a'.repeat(64)}`, 'states/.', ''])(
    'V6: an entry named "%s" is refused',
    async (name) => {
      expect(await refusal(withEntry(name, SMALL))).toContain('no entry has such a name');
    },
  );

  it('V6: links and wrong checksums are refused', async () => {
    const name = `states/${hash('sha256', SMALL, 'hex')}`;
    const link = (header: Buffer) => {
      header[156] = 0x32;
      header.write('        ', 148, 'latin1');
      const sum = header.reduce((total, byte) => total + byte, 0);
      header.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148, 'latin1');
    };
    expect(await refusal(withEntry(name, SMALL, link))).toContain('no regular file');
    expect(await refusal(withEntry(name, SMALL, (header) => header.fill(0x31, 100, 104)))).toContain('checksum');
  });

  it('V6: records, steps and small states with another digest are refused', async () => {
    const digest = 'a'.repeat(64);
    const names = [`records/00000001.${digest}.jsonl`, `small_states/${digest}.binpb`, `steps/${ID}/0.${digest}.binpb`];
    for (const name of names) expect(await refusal(withEntry(name, SMALL))).toContain('another digest');
  });

  it('V6: small states that are no messages, or have other fields, are refused', async () => {
    const withoutDigest = toBinary(StepStateSchema, create(StepStateSchema, { data: SMALL }));
    const withName = toBinary(StepStateSchema, create(StepStateSchema, { name: 'env', data: SMALL, digest: 'd' }));
    const contents = [SMALL, ...[withoutDigest, withName].map((bytes) => Buffer.from([bytes.length, ...bytes]))];
    for (const content of contents) {
      const name = `small_states/${hash('sha256', content, 'hex')}.binpb`;
      expect(await refusal(withEntry(name, content))).toContain(name);
    }
  });

  it('V5: small states are messages that any stub reads', async () => {
    const tar = zstdDecompressSync(await written([SMALL_STATES]));
    const name = tar.toString('latin1', 0, tar.indexOf(0));
    const entry = tar.subarray(512, 512 + Number.parseInt(tar.toString('latin1', 124, 135), 8));
    expect(name).toBe(`small_states/${hash('sha256', entry, 'hex')}.binpb`);
    const states = [];
    for await (const { digest, data } of sizeDelimitedDecodeStream(StepStateSchema, iterated([entry])))
      states.push({ digest, data });
    expect({ kind: 'small_states', states }).toEqual(SMALL_STATES);
  });

  it('V6: a zstd bomb is refused before its bytes are in memory', async () => {
    const zeros = Buffer.alloc(64 * 1024 * 1024 + 1);
    const name = `records/00000001.${'a'.repeat(64)}.jsonl`;
    expect(await refusal(withEntry(name, zeros))).toContain('at most');
    const params = { [constants.ZSTD_c_windowLog]: 27, [constants.ZSTD_c_contentSizeFlag]: 0 };
    const wide = zstdCompressSync(randomBytes(200 * 1024), { params });
    expect(await refusal(wide)).toMatch(/no zstd|no header/);
  });

  it('V5: an error of a part ends the bytes with this error, and an error of the bytes the parts', async () => {
    async function* failing<T>(item: T): AsyncGenerator<T> {
      yield item;
      throw new Error('the source failed');
    }
    await expect(async () => {
      for await (const _ of writeArchive(failing(PARTS[0]!)));
    }).rejects.toThrow('the source failed');
    await expect(async () => {
      for await (const _ of readArchive(failing((await written(PARTS)).subarray(0, 300))));
    }).rejects.toThrow('the source failed');
  });

  it('V5: whoever leaves early ends the source', async () => {
    let ended = false;
    async function* endless(): AsyncGenerator<ArchivePart> {
      try {
        for (;;) yield state(randomBytes(100_000));
      } finally {
        ended = true;
      }
    }
    for await (const _ of writeArchive(endless())) break;
    expect(ended).toBe(true);
  });
});
