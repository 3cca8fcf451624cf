import type { Trajectory } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import type { BranchPair, CompareBranchesResponse } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { addressOf } from '../address.ts';
import { useLoaded, usePage } from '../context.ts';
import { count, counted, nameOf, number, signed, visible } from '../format.ts';
import { pixel, type Scale } from '../scale.ts';
import { Table } from '../table.tsx';
import { compareBranches, listTree } from './read.ts';

/** The branches of a tree with one value of a label against those with another, in pairs. */
export function BranchesView({ treeId }: { readonly treeId: string }) {
  const { api, address, set } = usePage();
  const tree = useLoaded(`tree ${treeId}`, (signal) => listTree(api, treeId, signal));
  const labels = valuesByLabel(tree.value ?? []);
  const { query } = address;
  // Without a choice, the first label that can be compared is.
  const label = query.get('label') ?? [...labels].find(([, values]) => values.size > 1)?.[0] ?? '';
  const [first = '', second = ''] = [...(labels.get(label) ?? [])].sort();
  const [value, otherValue] = [query.get('a') ?? first, query.get('b') ?? second];
  const complete = label !== '' && (query.has('label') ? query.has('a') && query.has('b') : second !== '');
  return (
    <div class="rollout">
      <header class="title-bar">
        <h1>Branches by label</h1>
        <Choice
          name="label"
          value={label}
          offered={[...labels.keys()]}
          onChange={(to) => {
            const [a, b] = [...(labels.get(to) ?? [])].sort();
            set({ label: to, a, b });
          }}
        />
        {label !== '' && (
          <>
            <Choice
              name="value"
              value={value}
              offered={[...(labels.get(label) ?? [])]}
              onChange={(to) => set({ label, a: to, b: otherValue })}
            />
            <span class="dim">against</span>
            <Choice
              name="other value"
              value={otherValue}
              offered={[...(labels.get(label) ?? [])]}
              onChange={(to) => set({ label, a: value, b: to })}
            />
          </>
        )}
        <span class="space" />
        <a href={`/trees/${treeId}`}>Tree</a>
      </header>
      {tree.error !== undefined && <p class="problem">{tree.error}</p>}
      {tree.value !== undefined && labels.size === 0 && (
        <p class="dim">No trajectory of this tree has a label. Branches are compared by a label such as lr=0.1.</p>
      )}
      {complete && (
        <Statistics
          key={`${label} ${value} ${otherValue}`}
          question={{ treeId, label, value, otherValue }}
          parents={tree.value ?? []}
        />
      )}
    </div>
  );
}

function valuesByLabel(trajectories: readonly Trajectory[]): ReadonlyMap<string, ReadonlySet<string>> {
  const found = new Map<string, Set<string>>();
  for (const { labels } of trajectories) {
    for (const [name, value] of Object.entries(labels)) found.set(name, (found.get(name) ?? new Set()).add(value));
  }
  return found;
}

interface ChoiceProps {
  readonly name: string;
  readonly value: string;
  readonly offered: readonly string[];
  readonly onChange: (value: string) => void;
}

function Choice({ name, value, offered, onChange }: ChoiceProps) {
  return (
    <select aria-label={name} value={value} onChange={(event) => onChange(event.currentTarget.value)}>
      {[...new Set(value === '' ? ['', ...offered] : [value, ...offered])].map((each) => (
        <option key={each} value={each}>
          {each === '' ? `Choose the ${name}` : visible(each)}
        </option>
      ))}
    </select>
  );
}

interface Question {
  readonly treeId: string;
  readonly label: string;
  readonly value: string;
  readonly otherValue: string;
}

interface StatisticsProps {
  readonly question: Question;
  /** Trajectories of the tree, for their names. */
  readonly parents: readonly Trajectory[];
}

function Statistics({ question, parents }: StatisticsProps) {
  const { api } = usePage();
  const { value: found, error } = useLoaded('', (signal) => compareBranches(api, question, signal));
  if (error !== undefined) return <p class="problem">{error}</p>;
  if (found === undefined) return <p class="loading">Comparing …</p>;
  if (found.pairCount === 0)
    return <p class="dim">No two branches with these values part from the same parent at the same step.</p>;
  const [value, otherValue] = [question.value, question.otherValue].map(visible);
  return (
    <>
      <section aria-label="statistics">
        <dl class="facts wide">
          <Fact name={`Mean difference, ${otherValue} minus ${value}`}>{signed(found.meanDifference, 4)}</Fact>
          <Fact name="95 % bootstrap interval">
            {number(found.intervalLow)} to {number(found.intervalHigh)}
          </Fact>
          <Fact name="Sign test, p">{number(found.signTestP, 3)}</Fact>
          <Fact name={`${otherValue} is higher`}>
            {count(found.higher)} of {counted(found.pairCount, 'pair')}
          </Fact>
          <Fact name={`${otherValue} is lower`}>
            {count(found.lower)} of {counted(found.pairCount, 'pair')}
          </Fact>
        </dl>
        <DifferencePlot found={found} />
      </section>
      <section aria-labelledby="pairs">
        <div class="section-bar">
          <h2 id="pairs">Pairs</h2>
          {found.pairCount > found.pairs.length && <span class="dim">the first {count(found.pairs.length)}</span>}
        </div>
        <Table columns={['Branch point', { n: value ?? '' }, { n: otherValue ?? '' }, { n: 'Difference' }]}>
          {found.pairs.map((pair) => (
            <PairRow
              key={`${pair.parentId} ${pair.branchPoint}`}
              pair={pair}
              parent={parents.find(({ id }) => id === pair.parentId)}
            />
          ))}
        </Table>
      </section>
    </>
  );
}

function Fact({ name, children }: { readonly name: string; readonly children: unknown }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd class="figure">{children as string}</dd>
    </div>
  );
}

function PairRow({ pair, parent }: { readonly pair: BranchPair; readonly parent: Trajectory | undefined }) {
  const { parentId, branchPoint, value, otherValue, difference, branches, otherBranches } = pair;
  const several = (each: number) => each > 1 && <span class="dim"> mean of {count(each)}</span>;
  return (
    <tr>
      <th scope="row">
        <a href={addressOf(`/trees/${parentId}`, { at: parentId, step: branchPoint })}>
          {nameOf(parent ?? { id: parentId, name: '' })}, step {count(branchPoint)}
        </a>
      </th>
      <td class="n">
        {number(value)}
        {several(branches)}
      </td>
      <td class="n">
        {number(otherValue)}
        {several(otherBranches)}
      </td>
      <td class="n">{signed(difference, 4)}</td>
    </tr>
  );
}

const [WIDTH, HEIGHT] = [800, 64];

/** Each difference as a line, and the mean with its interval. The table of pairs has the values. */
function DifferencePlot({ found }: { readonly found: CompareBranchesResponse }) {
  const { meanDifference: mean = 0, intervalLow: low = mean, intervalHigh: high = mean } = found;
  const differences = found.pairs.map(({ difference }) => difference);
  const all = [0, low, high, ...differences];
  const x: Scale = { low: Math.min(...all), high: Math.max(...all), from: 8, to: WIDTH - 8 };
  const at = (value: number) => pixel(x, value);
  return (
    <svg
      class="difference-plot"
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      role="img"
      aria-label={`${count(differences.length)} differences from ${number(Math.min(...differences))} to ${number(
        Math.max(...differences),
      )}, mean ${number(mean)}, interval ${number(low)} to ${number(high)}`}
    >
      <path class="zero" d={`M${at(0)} 0V${HEIGHT}`} />
      <path class="each" d={differences.map((each) => `M${at(each)} 4v22`).join('')} />
      <path class="interval" d={`M${at(low)} 46H${at(high)}M${at(low)} 40v12M${at(high)} 40v12`} />
      <circle cx={at(mean)} cy={46} r={5} />
    </svg>
  );
}
