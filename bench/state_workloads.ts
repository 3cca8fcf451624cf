/**
 * Seeded sequences of states, as agents produce them. `fle`: JSON of 60 to 250 KB, 10 to 40 small changes a step, and a
 * part of 64 KB that never changes. `93k`: JSON of 93 KB, of which 20 fields change. `screenshots`: every third repeats
 * an earlier one; the others do not compress. `conversation`: JSON that grows by 90 KB of messages a turn, to 18 MB.
 */
export type StateWorkload = 'fle' | '93k' | 'screenshots' | 'conversation';

export interface WorkloadShape {
  readonly states: number;
  readonly mediaType: string;
}

export const WORKLOADS: Readonly<Record<StateWorkload, WorkloadShape>> = {
  fle: { states: 500, mediaType: 'application/json' },
  '93k': { states: 200, mediaType: 'application/json' },
  screenshots: { states: 40, mediaType: 'image/png' },
  conversation: { states: 200, mediaType: 'application/json' },
};

/** The first states of each sequence, which are stored before a measurement begins. */
export const WARM_UP_STATES = 20;

export function* statesOf(workload: StateWorkload, seed: number): Generator<Buffer, void> {
  const generators = { fle: fleStates, '93k': jsonStates, screenshots, conversation };
  const states = generators[workload](seed);
  for (let i = 0; i < WORKLOADS[workload].states; i += 1) yield states.next().value as Buffer;
}

const WORDS =
  'the agent opens file reads line result error test passes patch apply search grep module class method import return value'.split(
    ' ',
  );

type NextInt = (below: number) => number;

/** xorshift32: fast enough for megabytes, and the same on every machine. */
function random(seed: number): NextInt {
  let state = Math.imul(seed, 2_654_435_761) >>> 0 || 1;
  return (below) => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) % below;
  };
}

function* jsonStates(seed: number): Generator<Buffer, never> {
  const next = random(seed);
  const word = () => WORDS[next(WORDS.length)]!;
  const entities = Array.from({ length: 872 }, (_, i) => ({
    id: `entity_${i}`,
    name: word(),
    position: { x: next(20_000) / 10, y: next(20_000) / 10 },
    energy: next(1_000_000),
    status: word(),
  }));
  for (;;) {
    yield Buffer.from(JSON.stringify(entities));
    for (let i = 0; i < 20; i += 1) entities[next(entities.length)]!.energy = next(1_000_000);
  }
}

const ENTITIES = ['pipe', 'transport-belt', 'inserter', 'burner-mining-drill', 'stone-furnace', 'assembling-machine-1'];
const RESEARCH_BYTES = 64 * 1024;
const FLE_BYTES = 250 * 1024;

function* fleStates(seed: number): Generator<Buffer, never> {
  const next = random(seed);
  const word = () => WORDS[next(WORDS.length)]!;
  const technologies: string[] = [];
  for (let bytes = 0; bytes < RESEARCH_BYTES; bytes += technologies.at(-1)!.length + 1) {
    const name = `technology-${technologies.length}`;
    const prerequisites = [`technology-${next(200)}`, `technology-${next(200)}`];
    technologies.push(
      JSON.stringify({ name, level: next(5), prerequisites, researched: next(2) === 0, effect: word() }),
    );
  }
  const research = `[${technologies.join()}]`;
  const inventory: Record<string, number> = {};
  const entities: Record<string, unknown>[] = [];
  let bytes = research.length;
  for (let tick = 0; ; tick += 60) {
    for (let i = 10 + next(31); i > 0 && entities.length > 0; i -= 1) {
      const entity = entities[next(entities.length)]!;
      entity.energy = next(100_000);
      if (i % 5 === 0) entity.status = word();
    }
    inventory[word()] = next(500);
    for (let i = 1 + next(4); i > 0 && bytes < FLE_BYTES; i -= 1) {
      const position = { x: next(4000) / 2 - 1000, y: next(4000) / 2 - 1000 };
      entities.push({
        name: ENTITIES[next(ENTITIES.length)],
        unit_number: 1000 + entities.length,
        position,
        direction: next(8),
        status: word(),
        energy: next(100_000),
        fluid: next(1000),
      });
      bytes += JSON.stringify(entities.at(-1)).length + 1;
    }
    yield Buffer.from(
      `{"inventory":${JSON.stringify(inventory)},"entities":${JSON.stringify(entities)},"research":${research},"tick":${tick}}`,
    );
  }
}

function* screenshots(seed: number): Generator<Buffer, never> {
  const next = random(seed);
  const made: Buffer[] = [];
  for (let i = 0; ; i += 1) {
    if (i % 3 === 2) yield made[next(made.length)]!;
    else {
      const bytes = Buffer.alloc(200_000 + 4 * next(325_000));
      bytes.write('\x89PNG\r\n\x1a\n', 'latin1');
      for (let at = 8; at < bytes.length; at += 4) bytes.writeUInt32LE(next(0x1_0000_0000), at);
      made.push(bytes);
      yield bytes;
    }
  }
}

const TURN_BYTES = 90_000;

function* conversation(seed: number): Generator<Buffer, never> {
  const next = random(seed);
  const text = (bytes: number) => {
    let words = '';
    while (words.length < bytes) words += `${WORDS[next(WORDS.length)]}${next(9) === 0 ? next(1e9).toString(36) : ''} `;
    return words;
  };
  let messages = Buffer.from('{"messages":[');
  for (;;) {
    for (let left = TURN_BYTES; left > 0; ) {
      const bytes = Math.min(left, 2000 + next(20_000));
      const role = next(2) === 0 ? 'assistant' : 'tool';
      messages = Buffer.concat([
        messages,
        Buffer.from(`${JSON.stringify({ role, id: next(1e9), content: text(bytes) })},`),
      ]);
      left -= bytes;
    }
    yield Buffer.concat([messages, Buffer.from('null]}')]);
  }
}
