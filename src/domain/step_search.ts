import { tensorText } from './numbers/tensor.ts';
import type { Content, Step } from './step.ts';

/** A text that was found in a field of a step. */
export interface FoundText {
  /** Row key of the trajectory that owns the step. */
  readonly owner: bigint;
  readonly stepNumber: bigint;
  /** Path of the field: `actions[0].content.text`. */
  readonly field: string;
  readonly before: string;
  readonly match: string;
  readonly after: string;
}

/** What to find. The search ends after the step that has the last of `limit` matches. */
export interface SearchQuery {
  readonly text: string;
  readonly limit: number;
}

/** Matches of one step, so that a message with those of any step is small. */
const STEP_MATCHES = 16;

/** Characters before and after a match. */
const BEFORE = 40;
const AFTER = 80;

/** Returns the text in the form that is compared: capitals are small letters. */
export function foldText(text: string): string {
  // A small sigma has two forms, of which `toLowerCase` chooses by the next letter.
  return text.toLowerCase().replaceAll('ς', 'σ');
}

/** Returns JSON text as a person sees it, with the characters that its escapes stand for. */
export function visibleJson(json: string): string {
  if (!json.includes('\\')) return json;
  return json.replace(/\\(?:u([0-9a-fA-F]{4})|(.))/g, (_, code: string | undefined, letter: string) =>
    code === undefined ? (ESCAPES[letter] ?? letter) : String.fromCharCode(Number.parseInt(code, 16)),
  );
}

const ESCAPES: Readonly<Record<string, string>> = { b: '\b', f: '\f', n: '\n', r: '\r', t: '\t' };

/** Characters that JSON text may have only as escapes. */
const ESCAPED = /["\\/\p{Cc}]/u;

/** Looks for a text in the bytes of steps, without decoding them, and in decoded steps. */
export class TextSearch {
  readonly #folded: string;
  readonly #isAscii: boolean;
  readonly #isEscaped: boolean;
  /** The text can be a part of the text of a tensor, whose numbers are stored in binary. */
  readonly #isOfNumbers: boolean;

  constructor(text: string) {
    this.#folded = foldText(text);
    this.#isAscii = [...this.#folded].every((letter) => letter < '\u0080');
    this.#isEscaped = ESCAPED.test(text);
    this.#isOfNumbers = isOfNumbers(this.#folded);
  }

  /** Returns false if no step among the bytes can have the text. */
  mayHave(bytes: Buffer): boolean {
    // One byte for each character: the fastest way for texts of ASCII.
    const text = this.#isAscii ? bytes.toString('latin1').toLowerCase() : foldText(bytes.toString());
    return (
      text.includes(this.#folded) ||
      text.includes(this.#isEscaped ? '\\' : '\\u') ||
      (this.#isOfNumbers && NUMBERS_DTYPE.test(text))
    );
  }

  /** Returns the first match in each of the first 16 fields that have one. */
  *find(step: Step): Generator<Pick<FoundText, 'field' | 'before' | 'match' | 'after'>> {
    let matches = 0;
    for (const [field, text] of textsOf(step)) {
      const folded = foldText(text);
      const at = folded.indexOf(this.#folded);
      if (at < 0) continue;
      if (matches === STEP_MATCHES) return;
      matches += 1;
      // Folding rarely changes the length. Then places are those of the folded text.
      const shown = folded.length === text.length ? text : folded;
      const end = at + this.#folded.length;
      yield {
        field,
        before: shown.slice(Math.max(0, at - BEFORE), at).toWellFormed(),
        match: shown.slice(at, end).toWellFormed(),
        after: shown.slice(end, end + AFTER).toWellFormed(),
      };
    }
  }
}

/** The dtype of a tensor whose items are numbers or booleans. */
const NUMBERS_DTYPE = /[<>|][biuf][1248]/;
const WORDS_OF_NUMBERS = ['nan', 'infinity', 'true', 'false'];

function isOfNumbers(folded: string): boolean {
  const words = folded.match(/[a-z]+/g) ?? [];
  return (
    /^[-+0-9.,[\]a-z]+$/.test(folded) && words.every((word) => WORDS_OF_NUMBERS.some((each) => each.includes(word)))
  );
}

function* textsOf(step: Step): Generator<readonly [field: string, text: string]> {
  for (const [i, { type, name, content }] of step.actions.entries()) {
    yield [`actions[${i}].type`, type];
    yield [`actions[${i}].name`, name];
    yield* contentTexts(`actions[${i}].content`, content);
  }
  for (const [i, { type, content }] of step.observations.entries()) {
    yield [`observations[${i}].type`, type];
    yield* contentTexts(`observations[${i}].content`, content);
  }
  yield ['info_json', visibleJson(step.infoJson)];
  yield ['metadata_json', visibleJson(step.metadataJson)];
  for (const [key, value] of step.labels) yield [`labels[${JSON.stringify(key)}]`, value];
}

function* contentTexts(field: string, content: Content | undefined): Generator<readonly [string, string]> {
  if (content?.kind === 'text') yield [`${field}.text`, content.text];
  if (content?.kind === 'json') yield [`${field}.json`, visibleJson(content.json)];
  if (content?.kind === 'uri') yield [`${field}.uri`, content.uri];
  if (content?.kind === 'tensor' && content.data !== undefined)
    yield [`${field}.tensor`, tensorText(content, content.data) ?? ''];
}
