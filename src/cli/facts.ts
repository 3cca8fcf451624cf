/** The head of a page about one resource: lines with a label and a text. */
import { type DescMessage, type MessageShape, toJson } from '@bufbuild/protobuf';
import { cut, type Paint, printable } from './columns.ts';

export type Fact = readonly [label: string, text: string];

/** Names of the fields of a message. */
export type FieldOf<Desc extends DescMessage> = Exclude<keyof MessageShape<Desc>, '$typeName' | '$unknown'>;

/**
 * Returns the fields of a message that are set, each under its name, except those that the page shows otherwise or
 * leaves out. So a new field appears by itself.
 */
export function otherFacts<Desc extends DescMessage>(
  schema: Desc,
  message: MessageShape<Desc>,
  except: ReadonlySet<FieldOf<Desc>>,
): Fact[] {
  const json = toJson(schema, message) as Readonly<Record<string, unknown>>;
  return schema.fields
    .filter(({ localName }) => !except.has(localName as FieldOf<Desc>))
    .flatMap(({ name, jsonName }) => {
      const value = json[jsonName];
      const text = value === undefined || typeof value === 'string' ? value : JSON.stringify(value);
      return text === undefined ? [] : [[name.replace(/_json$/, '').replaceAll('_', ' '), text] as const];
    });
}

const LABEL_COLUMNS = 12;

/** Draws a line for each fact whose text is not empty. */
export function factLines(
  facts: readonly Fact[],
  { columns, paint }: { readonly columns: number; readonly paint: Paint },
): string[] {
  return facts.flatMap(([label, text]) => {
    if (text === '') return [];
    const head = `${label} `.padEnd(LABEL_COLUMNS);
    return [`  ${paint.dim(head)}${cut(printable(text), columns - head.length - 2)}`];
  });
}

/** `model=reflex, difficulty=easy` */
export function labelsText(labels: Readonly<Record<string, string>>): string {
  return Object.entries(labels)
    .map(([key, value]) => `${key}=${value}`)
    .join(', ');
}
