//! Cryptographic algorithms for TLS: those of ring, and signatures and key exchange with P-521, which ring lacks. (With TLS 1.2,
//! OpenSSL presents a certificate of that curve only to clients that can also exchange keys with it.)

use std::sync::LazyLock;

use p521::ecdh::EphemeralSecret;
use p521::ecdsa::signature::hazmat::PrehashVerifier;
use p521::ecdsa::{Signature, VerifyingKey};
use p521::elliptic_curve::rand_core::OsRng;
use p521::{EncodedPoint, PublicKey};
use ring::digest;
use rustls::crypto::{
    ActiveKeyExchange, CryptoProvider, SharedSecret, SupportedKxGroup, WebPkiSupportedAlgorithms,
};
use rustls::pki_types::{
    AlgorithmIdentifier, InvalidSignature, SignatureVerificationAlgorithm, alg_id,
};
use rustls::{Error, NamedGroup, PeerMisbehaved, SignatureScheme};

/// Kinds of certificate keys that are accepted, for messages.
pub(super) const KEYS: &str = "RSA of 2048 bits or more, ECDSA P-256, P-384 or P-521, Ed25519";

/// Groups for key exchange, for messages.
pub(super) const GROUPS: &str = "X25519, P-256, P-384, P-521";

pub(super) fn provider() -> CryptoProvider {
    let mut provider = rustls::crypto::ring::default_provider();
    provider.signature_verification_algorithms = supported();
    provider.kx_groups.push(&P521Group);
    provider
}

/// Key exchange with P-521.
#[derive(Debug)]
struct P521Group;

/// The key exchange of one connection.
struct P521Exchange {
    secret: EphemeralSecret,
    public: EncodedPoint,
}

impl SupportedKxGroup for P521Group {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let secret = EphemeralSecret::random(&mut OsRng);
        let public = EncodedPoint::from(secret.public_key());
        Ok(Box::new(P521Exchange { secret, public }))
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::secp521r1
    }
}

impl ActiveKeyExchange for P521Exchange {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        // TLS allows no other encoding of a point.
        const UNCOMPRESSED: u8 = 4;
        let key = PublicKey::from_sec1_bytes(peer)
            .ok()
            .filter(|_| peer.first() == Some(&UNCOMPRESSED))
            .ok_or(PeerMisbehaved::InvalidKeyShare)?;
        let shared = self.secret.diffie_hellman(&key);
        Ok(SharedSecret::from(&shared.raw_secret_bytes()[..]))
    }

    fn pub_key(&self) -> &[u8] {
        self.public.as_bytes()
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::secp521r1
    }
}

type Algorithm = &'static dyn SignatureVerificationAlgorithm;

/// Verification of signatures with P-521. It only processes public values, so it need not run in constant time.
#[derive(Debug)]
struct P521 {
    hash: &'static digest::Algorithm,
    id: AlgorithmIdentifier,
}

/// Bytes of a scalar of P-521.
const SCALAR_BYTES: usize = 66;

static SHA256: P521 = P521 {
    hash: &digest::SHA256,
    id: alg_id::ECDSA_SHA256,
};
static SHA384: P521 = P521 {
    hash: &digest::SHA384,
    id: alg_id::ECDSA_SHA384,
};
static SHA512: P521 = P521 {
    hash: &digest::SHA512,
    id: alg_id::ECDSA_SHA512,
};

impl SignatureVerificationAlgorithm for P521 {
    fn verify_signature(
        &self,
        public_key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        let key = VerifyingKey::from_sec1_bytes(public_key).map_err(|_| InvalidSignature)?;
        let signature = Signature::from_der(signature).map_err(|_| InvalidSignature)?;
        // The digest is shorter than a scalar: the library requires the full length.
        let digest = digest::digest(self.hash, message);
        let mut scalar = [0; SCALAR_BYTES];
        scalar[SCALAR_BYTES - digest.as_ref().len()..].copy_from_slice(digest.as_ref());
        key.verify_prehash(&scalar, &signature)
            .map_err(|_| InvalidSignature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_P521
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.id
    }
}

/// All signature algorithms, made once for the process.
pub(super) fn supported() -> WebPkiSupportedAlgorithms {
    static SUPPORTED: LazyLock<WebPkiSupportedAlgorithms> = LazyLock::new(|| {
        let known = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        let own: [Algorithm; 3] = [&SHA256, &SHA384, &SHA512];
        let all: Vec<Algorithm> = known.all.iter().copied().chain(own).collect();
        let mut mapping: Vec<(SignatureScheme, &'static [Algorithm])> = known
            .mapping
            .iter()
            .map(|&(scheme, algorithms)| (scheme, add_own_algorithm(scheme, algorithms)))
            .collect();
        mapping.push((SignatureScheme::ECDSA_NISTP521_SHA512, vec![own[2]].leak()));
        WebPkiSupportedAlgorithms {
            all: all.leak(),
            mapping: mapping.leak(),
        }
    });
    *SUPPORTED
}

/// The algorithms of a scheme. In TLS 1.2 a scheme fixes only the hash: any curve may be used with it. TLS 1.3 uses the first one.
fn add_own_algorithm(scheme: SignatureScheme, known: &'static [Algorithm]) -> &'static [Algorithm] {
    let own: Algorithm = match scheme {
        SignatureScheme::ECDSA_NISTP256_SHA256 => &SHA256,
        SignatureScheme::ECDSA_NISTP384_SHA384 => &SHA384,
        _ => return known,
    };
    known
        .iter()
        .copied()
        .chain([own])
        .collect::<Vec<_>>()
        .leak()
}
