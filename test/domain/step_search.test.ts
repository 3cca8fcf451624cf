import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { foldText, TextSearch, visibleJson } from '../../src/domain/step_search.ts';
import { CHARACTER } from '../support/character.ts';
import { packed } from '../support/packed_steps.ts';
import { makeStep, textAction } from '../support/steps.ts';

const json = (text: string) =>
  ({ type: '', callId: '', isError: false, content: { kind: 'json', json: text, mediaType: '' } }) as const;

describe('search in steps', () => {
  it('RD10: JSON is searched as a person sees it', () => {
    expect(visibleJson('{"a":"x\\ny\\u00e9\\"\\\\\\/\\ud83d\\ude00"}')).toBe('{"a":"x\nyé"\\/😀"}');
    fc.assert(
      fc.property(fc.string({ unit: CHARACTER }), (text) => {
        expect(visibleJson(JSON.stringify(text))).toBe(`"${text}"`);
      }),
    );
  });

  it.each([
    ['HELLO', 'say Hello there', 'say ', 'Hello', ' there'],
    ['ü', 'GRÜN', 'GR', 'Ü', 'N'],
    ['σας', 'ΣΑΣ', '', 'ΣΑΣ', ''],
    ['b', `${'a'.repeat(50)}b${'c'.repeat(100)}`, 'a'.repeat(40), 'b', 'c'.repeat(80)],
    ['.*', 'a.*b', 'a', '.*', 'b'],
  ])('RD10: %j in %j', (text, within, before, match, after) => {
    const step = { ...makeStep(0n), actions: [textAction(within)] };
    expect([...new TextSearch(text).find(step)]).toEqual([{ field: 'actions[0].content.text', before, match, after }]);
  });

  it('RD10: the numbers of a tensor are searched as they are shown', () => {
    const tensor = (dtype: string, data: Uint8Array) => {
      const content = { kind: 'tensor', dtype, shape: [3], data } as const;
      return { ...makeStep(0n), observations: [{ type: '', callId: '', isError: false, content }] };
    };
    const floats = tensor('<f4', new Uint8Array(Float32Array.of(0.0273956, Number.NaN, 1e-9).buffer));
    const bytesOfStep = (step: typeof floats) => Buffer.from(packed(step).bytes);
    for (const text of ['0273956', '0.0273956,nan', '1E-9]', 'N']) {
      const search = new TextSearch(text);
      expect([...search.find(floats)].map(({ field }) => field)).toEqual(['observations[0].content.tensor']);
      expect(search.mayHave(bytesOfStep(floats))).toBe(true);
    }
    expect(new TextSearch('apple').mayHave(bytesOfStep(floats))).toBe(false);
    expect(new TextSearch('0273956').mayHave(bytesOfStep(tensor('<c8', new Uint8Array(24))))).toBe(false);
    expect([...new TextSearch('true').find(tensor('|b1', Uint8Array.of(0, 1, 0)))]).toMatchObject([
      { before: '[false,', match: 'true', after: ',false]' },
    ]);
  });

  it('RD10: the first match of each field, at most 16 of a step', () => {
    const step = {
      ...makeStep(0n),
      actions: [textAction('q q'), textAction('y')],
      observations: Array.from({ length: 30 }, () => json('"\\u0071"')),
      infoJson: '{"Q":1}',
    };
    const found = [...new TextSearch('q').find(step)].map(({ field }) => field);
    expect(found.length).toBe(16);
    expect(found.slice(0, 2)).toEqual(['actions[0].content.text', 'observations[0].content.json']);
    const few = { ...step, observations: [], labels: new Map([['k"', 'qyz']]) };
    const fields = [...new TextSearch('q').find(few)].map(({ field }) => field);
    expect(fields).toEqual(['actions[0].content.text', 'info_json', 'labels["k\\""]']);
  });

  it('RD10: bytes without the text are excluded, and no step that has it is', () => {
    const word = fc.string({
      unit: fc.constantFrom('a', 'B', 'é', 'Ä', '"', '\\', '\n', 'σ', '漢', ' '),
      maxLength: 6,
    });
    fc.assert(
      fc.property(word, word, fc.boolean(), fc.boolean(), (query, text, asJson, ascii) => {
        if (query === '') return;
        const plain = JSON.stringify(text);
        const escaped = plain.replace(/[\u0080-\uffff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);
        const step = {
          ...makeStep(0n),
          actions: asJson ? [] : [textAction(text)],
          observations: asJson ? [json(ascii ? escaped : plain)] : [],
        };
        const search = new TextSearch(query);
        const visible = asJson ? `"${text}"` : text;
        const isThere = foldText(visible).includes(foldText(query));
        expect([...search.find(step)].length).toBe(isThere ? 1 : 0);
        if (isThere) expect(search.mayHave(Buffer.from(packed(step).bytes))).toBe(true);
      }),
    );
    expect(new TextSearch('nowhere').mayHave(Buffer.from('some text'))).toBe(false);
  });
});
