import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { differenceOf } from '../../page/src/step/difference.ts';
import { strokeOf } from '../../page/src/step/marks.ts';
import { readMsgpack } from '../../page/src/step/msgpack.ts';
import { changesOf, compareWords } from '../../page/src/step/patch.ts';
import { stateText } from '../../page/src/step/state_text.ts';

describe('changes of a state', () => {
  it('have the values before them, also where earlier operations have moved the members of an array', () => {
    const before = { tick: 1, list: ['a', 'b', 'c'], 'a/b': { '~': true }, gone: 'x' };
    const patch = [
      { op: 'replace', path: '/tick', value: 2 },
      { op: 'remove', path: '/list/0' },
      { op: 'replace', path: '/list/1', value: 'C' },
      { op: 'add', path: '/list/-', value: 'd' },
      { op: 'remove', path: '/a~1b/~0' },
      { op: 'remove', path: '/gone' },
      { op: 'add', path: '/__proto__', value: 1 },
    ];
    expect(changesOf(before, patch).map((change) => [change.path, change.before, change.after])).toEqual([
      ['/tick', 1, 2],
      ['/list/0', 'a', undefined],
      ['/list/1', 'c', 'C'],
      ['/list/-', undefined, 'd'],
      ['/a~1b/~0', true, undefined],
      ['/gone', 'x', undefined],
      ['/__proto__', expect.anything(), 1],
    ]);
    expect(before.list).toEqual(['a', 'b', 'c']);
  });

  it('can replace the whole document', () => {
    expect(changesOf(1, [{ op: 'replace', path: '', value: 2 }])).toEqual([
      { path: '', kind: 'replace', before: 1, after: 2 },
    ]);
  });
});

describe('the difference of two states', () => {
  it('has the changes of JSON, also where an element moves others', () => {
    const [before, after] = ['{"hp": 9, "at": [1, 2]}', '{"hp": 9.0, "at": [0, 1, 2], "new": null}'];
    expect(differenceOf(before, after)?.map(({ kind, path }) => `${kind} ${path}`)).toEqual(['add /new', 'add /at/0']);
    expect(differenceOf('null', '1')).toEqual([{ path: '', kind: 'replace', before: null, after: 1 }]);
  });

  it('is none if one of them is no JSON', () => {
    for (const [one, other] of [
      ['{', '{}'],
      ['{}', 'no'],
    ] as const)
      expect(differenceOf(one, other)).toBeUndefined();
  });
});

describe('texts compared word by word', () => {
  it('name the words that differ', () => {
    expect(compareWords('open the red door now', 'open the blue door, now')).toEqual([
      { text: 'open the ', in: 'both' },
      { text: 'red', in: 'before' },
      { text: 'blue', in: 'after' },
      { text: ' door', in: 'both' },
      { text: ',', in: 'after' },
      { text: ' now', in: 'both' },
    ]);
  });

  it('contain both texts completely, also when they are long', () => {
    const word = fc.constantFrom('a', 'b', ' ', 'long', '.');
    const text = fc.array(word, { maxLength: 40 }).map((words) => words.join(''));
    fc.assert(
      fc.property(text, text, fc.constantFrom(1, 50), (some, other, times) => {
        const [before, after] = [some.repeat(times), other.repeat(times)];
        const parts = compareWords(before, after);
        const textIn = (side: string) =>
          parts.flatMap((part) => (part.in === 'both' || part.in === side ? [part.text] : [])).join('');
        expect([textIn('before'), textIn('after')]).toEqual([before, after]);
      }),
      { numRuns: 50 },
    );
  });
});

describe('marks of actions', () => {
  it.each([
    ['{"x":3,"y":4}', [[3, 4]]],
    ['{"action":"left_click","coordinate":[3,4]}', [[3, 4]]],
    ['{"name":"click","arguments":{"x":3,"y":4}}', [[3, 4]]],
    [
      '{"start_x":1,"start_y":2,"end_x":3,"end_y":4}',
      [
        [1, 2],
        [3, 4],
      ],
    ],
    [
      '{"start_coordinate":[1,2],"coordinate":[3,4]}',
      [
        [1, 2],
        [3, 4],
      ],
    ],
    [
      '{"path":[{"x":1,"y":2},[3,4]]}',
      [
        [1, 2],
        [3, 4],
      ],
    ],
    ['{"x":"3","y":4}', undefined],
    ['{"x":1e999,"y":4}', undefined],
    ['not JSON', undefined],
    ['null', undefined],
  ])('%s points at %j', (json, stroke) => {
    expect(strokeOf(json)).toEqual(stroke);
  });
});

describe('a state in MessagePack', () => {
  const bytesOf = (hex: string) => Uint8Array.from(Buffer.from(hex.replaceAll(' ', ''), 'hex'));

  it.each([
    ['c4 02 00ff', '2 B: 00ff'],
    [`c4 21 ${'00'.repeat(33)}`, `33 B: ${'00'.repeat(32)}…`],
    ['92 01 a161', [1, 'a']],
    ['82 a161 01 05 a162', { a: 1, 5: 'b' }],
    ['d6 ff 00000001', '1970-01-01T00:00:01.000Z'],
    // An object of LangGraph: module, class and value.
    ['c7 09 05 93 a16d a143 81 a161 01', { a: 1 }],
    ['d4 63 c1', '1 B: c1'],
  ] as const)('%s is read', (hex, value) => {
    const bytes = bytesOf(hex);
    expect(readMsgpack(bytes)).toEqual(value);
    for (let end = 0; end < bytes.byteLength; end += 1) expect(() => readMsgpack(bytes.subarray(0, end))).toThrow();
    expect(() => readMsgpack(Uint8Array.of(...bytes, 0))).toThrow();
  });

  it('of a checkpoint of LangGraph is shown as the values of its channels, and as it is if it is damaged', () => {
    const type = 'application/vnd.langgraph+';
    const checkpoint = bytesOf('82 a176 04 ae 6368616e6e656c5f76616c756573 81 a161 01');
    expect(stateText(`${type}msgpack`, checkpoint)).toBe('{"a":1}');
    expect(stateText(`${type}json`, Buffer.from('{"v": 4, "channel_values": {"a": 1}}'))).toBe('{"a":1}');
    expect(stateText(`${type}json`, Buffer.from('{"source": "loop"}'))).toBe('{"source":"loop"}');
    expect(stateText(`${type}msgpack`, bytesOf('82 61'))).toBe('\u{FFFD}a');
    expect(stateText('text/plain', Buffer.from('{"channel_values": 1}'))).toBe('{"channel_values": 1}');
  });
});
