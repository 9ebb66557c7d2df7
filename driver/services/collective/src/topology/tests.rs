use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn torus() -> impl Strategy<Value = Torus> {
    (1_usize..8, 1_usize..7, 1_usize..6).prop_map(|(x, y, z)| Torus::new(x, y, z).unwrap())
}

fn torus_and_two() -> impl Strategy<Value = (Torus, usize, usize)> {
    torus().prop_flat_map(|torus| (Just(torus), 0..torus.nodes(), 0..torus.nodes()))
}

fn tree() -> impl Strategy<Value = Tree> {
    (1_usize..200).prop_flat_map(|nodes| (Just(nodes), 0..nodes)).prop_map(|(nodes, root)| Tree::new(nodes, root).unwrap())
}

/// Hops between all nodes and one, found by walking link by link.
fn walked(torus: &Torus, from: usize) -> Vec<usize> {
    let mut hops = vec![usize::MAX; torus.nodes()];
    hops[from] = 0;
    let mut edge = vec![from];
    while !edge.is_empty() {
        let mut next = Vec::new();
        for rank in edge {
            for (_, other) in torus.neighbours(rank) {
                if hops[other] == usize::MAX {
                    hops[other] = hops[rank] + 1;
                    next.push(other);
                }
            }
        }
        edge = next;
    }
    hops
}

proptest! {
    #[test]
    // Files and many cases: not for Miri.
    #[cfg_attr(miri, ignore)]
    fn ranks_and_coordinates_are_inverse(torus in torus()) {
        prop_assert_eq!(torus.iter().len(), torus.nodes());
        for (rank, at) in torus.iter() {
            prop_assert_eq!(torus.coordinates(rank), Some(at));
            prop_assert_eq!(torus.rank(at), Some(rank));
        }
        prop_assert_eq!(torus.coordinates(torus.nodes()), None);
        let [x, y, z] = torus.extents();
        for beyond in [[x, 0, 0], [0, y, 0], [0, 0, z], [usize::MAX; 3]] {
            prop_assert_eq!(torus.rank(beyond.into()), None);
        }
    }

    #[test]
    // Files and many cases: not for Miri.
    #[cfg_attr(miri, ignore)]
    fn a_link_leads_back_by_its_opposite((torus, rank, _) in torus_and_two()) {
        prop_assert_eq!(torus.neighbours(rank).count(), 6);
        for (direction, other) in torus.neighbours(rank) {
            prop_assert_eq!(direction.opposite().opposite(), direction);
            prop_assert_eq!(torus.neighbour(other, direction.opposite()), Some(rank));
            // As many steps as the axis is long lead home, and none before.
            let round = std::iter::successors(Some(other), |at| torus.neighbour(*at, direction));
            prop_assert_eq!(round.take_while(|at| *at != rank).count() + 1, torus.extents()[direction.axis()]);
        }
    }

    #[test]
    // Files and many cases: not for Miri.
    #[cfg_attr(miri, ignore)]
    fn a_route_is_as_long_as_the_distance_and_none_is_shorter((torus, from, to) in torus_and_two()) {
        let route = torus.route(from, to).unwrap();
        prop_assert_eq!(Some(route.len()), torus.distance(from, to));
        prop_assert_eq!(torus.distance(from, to), torus.distance(to, from));
        prop_assert_eq!(route.len(), walked(&torus, from)[to]);
        let (mut at, mut axes, hops) = (from, Vec::new(), route.len());
        for (i, hop) in route.clone().enumerate() {
            prop_assert_eq!(torus.neighbour(at, hop.direction), Some(hop.rank));
            prop_assert_eq!(torus.distance(hop.rank, to), Some(hops - i - 1));
            at = hop.rank;
            axes.push(hop.direction.axis());
        }
        prop_assert_eq!((at, axes.len(), axes.is_sorted()), (to, hops, true));
        prop_assert!(torus.route(from, torus.nodes()).is_none() && torus.distance(torus.nodes(), to).is_none());
    }

    #[test]
    // Files and many cases: not for Miri.
    #[cfg_attr(miri, ignore)]
    fn nothing_of_the_same_product_is_more_cubic(nodes in 1_usize..600) {
        let torus = Torus::near_cubic(nodes).unwrap();
        let found = torus.extents();
        prop_assert_eq!(torus.nodes(), nodes);
        prop_assert!(found.is_sorted_by(|a, b| a >= b));
        for x in (1..=nodes).filter(|x| nodes.is_multiple_of(*x)) {
            for y in (1..=nodes / x).filter(|y| (nodes / x).is_multiple_of(*y)) {
                prop_assert!(found.iter().sum::<usize>() <= x + y + nodes / x / y);
            }
        }
    }

    #[test]
    // Files and many cases: not for Miri.
    #[cfg_attr(miri, ignore)]
    fn every_rank_hangs_in_the_tree_once(tree in tree()) {
        let mut reached = BTreeSet::from([tree.root()]);
        for rank in tree.downwards() {
            prop_assert!(reached.contains(&rank), "{} comes before its parent", rank);
            prop_assert_eq!(tree.children(rank).count() == 0, tree.is_leaf(rank));
            for child in tree.children(rank) {
                prop_assert!(reached.insert(child), "{} has two parents", child);
                prop_assert_eq!(tree.parent(child), Some(rank));
                prop_assert_eq!(tree.depth(child), tree.depth(rank).map(|depth| depth + 1));
            }
        }
        prop_assert_eq!(reached, (0..tree.nodes()).collect::<BTreeSet<_>>());
        prop_assert_eq!((tree.parent(tree.root()), tree.depth(tree.root())), (None, Some(0)));
        prop_assert!(tree.downwards().eq(tree.upwards().rev()));
        prop_assert!(tree.leaves().eq(tree.downwards().filter(|rank| tree.is_leaf(*rank))));
        let depths: BTreeSet<_> = tree.leaves().filter_map(|leaf| tree.depth(leaf)).collect();
        prop_assert_eq!(depths.last(), Some(&tree.height()));
        prop_assert!(depths.first().unwrap() + 1 >= tree.height());
    }

    #[test]
    // Files and many cases: not for Miri.
    #[cfg_attr(miri, ignore)]
    fn whoever_is_not_in_the_tree_has_nobody(tree in tree(), beyond in 0_usize..5) {
        let rank = [tree.nodes(), tree.nodes() + beyond, usize::MAX - beyond][beyond % 3];
        prop_assert_eq!((tree.parent(rank), tree.depth(rank), tree.children(rank).count()), (None, None, 0));
        prop_assert!(!tree.is_leaf(rank));
    }
}

#[test]
fn what_cannot_be_is_refused() {
    for (x, y, z) in [(0, 1, 1), (1, 0, 1), (usize::MAX, usize::MAX, 0), (0, usize::MAX, usize::MAX)] {
        assert_eq!(Torus::new(x, y, z), Err(TopologyError::Empty));
    }
    for (x, y, z) in [(NODES_MAX + 1, 1, 1), (256, 256, 2), (usize::MAX, usize::MAX, 1), (1, usize::MAX, 2)] {
        assert_eq!(Torus::new(x, y, z), Err(TopologyError::TooLarge));
    }
    assert_eq!(Torus::new(256, 256, 1).unwrap().nodes(), NODES_MAX);
    assert_eq!(Torus::near_cubic(0), Err(TopologyError::Empty));
    assert_eq!(Torus::near_cubic(NODES_MAX).unwrap().extents(), [64, 32, 32]);
    assert_eq!(Torus::near_cubic(usize::MAX), Err(TopologyError::TooLarge));
    assert_eq!(Tree::new(0, 0), Err(TopologyError::Empty));
    assert_eq!(Tree::new(usize::MAX, 0), Err(TopologyError::TooLarge));
    let error = Tree::new(4, 4).unwrap_err();
    assert_eq!(error.to_string(), "rank 4 cannot be the root: the ranks of 4 nodes are 0 to 3");
}

#[test]
fn directions_are_written_as_people_do() {
    let words: Vec<String> = Direction::ALL.iter().map(Direction::to_string).collect();
    assert_eq!(words, ["+x", "-x", "+y", "-y", "+z", "-z"]);
    assert_eq!(Coordinates::new(1, 0, 2).to_string(), "(1, 0, 2)");
}
