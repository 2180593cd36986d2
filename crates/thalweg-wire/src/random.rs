//! Pseudorandom numbers from a seed, the same on every platform: SplitMix64 (Steele, Lea and Flood, *Fast splittable
//! pseudorandom number generators*, OOPSLA 2014; constants of Vigna's `splitmix64.c`).

/// Increment of the generator's state, wrapping, before each number.
pub const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the number for a state of the generator. As a hash function, it turns any number into one that looks random.
#[inline]
pub fn mix_bits(z: u64) -> u64 {
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers from Rosetta Code for the seed 1234567 ("Pseudo-random numbers/Splitmix64").
    #[test]
    fn agrees_with_the_published_numbers() {
        let mut state = 1_234_567u64;
        let numbers = [(); 5].map(|()| {
            state = state.wrapping_add(GOLDEN_GAMMA);
            mix_bits(state)
        });
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(numbers, published);
    }
}
