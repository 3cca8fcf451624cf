/**
 * Watches that begin before anybody asks for them, and the messages that the first script writes and reads by itself.
 */
import { BinaryWriter, WireType } from '@bufbuild/protobuf/wire';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { EarlySource } from '../../page/src/watch/early_source.ts';
import type { WatchEvent, WatchSource } from '../../page/src/watch/stream.ts';
import { bytesField, fieldsOf, joined, textField, varintField } from '../../page/src/watch/wire.ts';

const BEGIN: WatchEvent = { kind: 'begin' };

/** A source that notes what is added to it. */
class NotedSource implements WatchSource {
  readonly added: Uint8Array[] = [];
  readonly removed: Uint8Array[] = [];
  readonly listeners: ((event: WatchEvent) => void)[] = [];

  add(subject: Uint8Array, listener: (event: WatchEvent) => void): () => void {
    this.added.push(subject);
    this.listeners.push(listener);
    return () => this.removed.push(subject);
  }
}

describe('a source of early watches', () => {
  it('gives what has come to the first who asks, then what comes, and begins no second watch', () => {
    const under = new NotedSource();
    const source = new EarlySource(under, [Uint8Array.of(1), Uint8Array.of(2)]);
    under.listeners[0]?.({ kind: 'cut' });
    under.listeners[0]?.(BEGIN);
    under.listeners[0]?.({ kind: 'message', bytes: Uint8Array.of(7) });
    const told: string[] = [];
    const remove = source.add(Uint8Array.of(1), ({ kind }) => told.push(kind));
    under.listeners[0]?.({ kind: 'cut' });
    expect(told).toEqual(['begin', 'message', 'cut']);
    expect(under.added).toHaveLength(2);
    // A second watch of the same is one of its own.
    source.add(Uint8Array.of(1), () => {});
    expect(under.added).toHaveLength(3);
    remove();
    source.drop();
    expect(under.removed).toEqual([Uint8Array.of(1), Uint8Array.of(2)]);
  });
});

describe('fields', () => {
  const FIELDS = fc.array(
    fc.record({
      number: fc.integer({ min: 1, max: 100_000 }),
      field: fc.oneof(fc.nat({ max: 2 ** 31 - 1 }), fc.uint8Array({ maxLength: 300 }), fc.string()),
    }),
  );

  it('are written as the library writes them, and read as they were written', () => {
    fc.assert(
      fc.property(FIELDS, (fields) => {
        const writer = new BinaryWriter();
        const pieces = fields.map(({ number, field }) => {
          if (typeof field === 'number') {
            writer.tag(number, WireType.Varint).uint32(field);
            return varintField(number, field);
          }
          writer.tag(number, WireType.LengthDelimited);
          if (typeof field === 'string') {
            writer.string(field);
            return textField(number, field);
          }
          writer.bytes(field);
          return bytesField(number, field);
        });
        const written = joined(pieces);
        expect([...written]).toEqual([...writer.finish()]);
        const read = [...fieldsOf(written)].map(({ number, value, bytes }) => ({ number, value, bytes: [...bytes] }));
        const wanted = fields.map(({ number, field }) =>
          typeof field === 'number'
            ? { number, value: field, bytes: [] }
            : { number, value: 0, bytes: [...(typeof field === 'string' ? Buffer.from(field) : field)] },
        );
        expect(read).toEqual(wanted);
      }),
    );
  });

  it('of other types are passed over, and a message that ends within a field is refused', () => {
    const writer = new BinaryWriter();
    writer.tag(3, WireType.Bit64).fixed64(1).tag(4, WireType.Bit32).fixed32(1).tag(5, WireType.Varint).uint32(6);
    const bytes = writer.finish();
    expect([...fieldsOf(bytes)].map(({ number, value }) => [number, value])).toEqual([[5, 6]]);
    expect(() => [...fieldsOf(bytesField(1, Uint8Array.of(1, 2)).subarray(0, 3))]).toThrow('ends within a field');
    expect(() => [...fieldsOf(Uint8Array.of(8, 128))]).toThrow('ends within a field');
    expect(() => [...fieldsOf(Uint8Array.of(11))]).toThrow('unknown type 3');
  });
});
